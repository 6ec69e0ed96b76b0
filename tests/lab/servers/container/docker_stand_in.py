"""A program that behaves like docker, for tests: containers are processes of this machine.

Kept as docker does it (docker 28; podman's answers differ in wording only):
- containers are detached, under a shim that has the id among its arguments; a failed `run` leaves one "created";
- exit codes 125 (the runtime failed), 127 (no such program) and 128 + signal; `wait` prints them;
- PID 1 gets no signals that it does not handle, but SIGKILL; `--memory` kills and sets OOMKilled;
- `logs --follow` begins at the start and ends with the container; the daemon passes on no variables but --env;
- unknown containers, exec in a stopped one and rm of a running one are errors with docker's words;
- `compose` labels its containers with project and service.

Not kept: no isolation of files, processes or networks, so a published port must equal the port inside; an image is
only a name; compose files are JSON (which is YAML) and have no interpolation but $$.

The folder in STAND_IN holds `images` (names on this machine), `registry` (names that can be pulled) and a folder
per container. `broken` in it makes every command fail as without a daemon.
"""

import json
import os
import secrets
import signal
import subprocess
import sys
import time
from pathlib import Path

STATE = Path(os.environ.get("STAND_IN", "."))
FLAGS = {
    "-d",
    "--detach",
    "--rm",
    "-i",
    "-t",
    "--init",
    "--no-trunc",
    "-a",
    "--all",
    "-q",
    "--quiet",
    "-f",
    "--force",
}
FLAGS |= {"--follow", "--volumes", "--no-recreate", "--ignore-buildable", "--include-deps", "--privileged"}
SHORT = {"-p": "--publish", "-e": "--env", "-l": "--label", "-m": "--memory", "-v": "--volume", "-w": "--workdir"}
PROJECT, SERVICE = "com.docker.compose.project", "com.docker.compose.service"


def fail(words, code=1):
    print(words, file=sys.stderr)
    sys.exit(code)


def daemon_error(words, code=1):
    fail(f"Error response from daemon: {words}", code)


def options(words):
    """Returns {option: values} and the words after them."""
    given, rest = {}, list(words)
    while rest and rest[0].startswith("-"):
        name, equals, value = rest.pop(0).partition("=")
        name = SHORT.get(name, name)
        given.setdefault(name, []).append("" if name in FLAGS else value if equals else rest.pop(0))
    return given, rest


def lines(name):
    path = STATE / name
    return path.read_text().split() if path.exists() else []


def read(folder):
    return json.loads((folder / "state.json").read_text())


def write(folder, state):
    (folder / "new.json").write_text(json.dumps(state))
    (folder / "new.json").rename(folder / "state.json")


def containers():
    return [folder for folder in sorted(STATE.glob("containers/*")) if (folder / "state.json").exists()]


def find(name):
    for folder in containers():
        if folder.name.startswith(name) or read(folder)["Name"] == f"/{name}":
            return folder
    return daemon_error(f"No such container: {name}")


def run(words):
    given, (image, *command) = options(words)
    if image not in lines("images"):
        print(f"Unable to find image '{image}' locally", file=sys.stderr)
        pull([image], code=125)
    name = given.get("--name", [secrets.token_hex(4)])[0]
    if any(read(folder)["Name"] == f"/{name}" for folder in containers()):
        words = f'Conflict. The container name "/{name}" is already in use by container "x". You have to remove it.'
        daemon_error(words, 125)
    labels = dict(label.split("=", 1) for label in given.get("--label", []))
    print(create(image, command, given.get("--env", []), labels, name, given.get("--memory", [""])[0]))


def create(image, command, variables, labels, name, memory=""):
    """Creates and starts a container, or leaves it created and fails."""
    folder = STATE / "containers" / secrets.token_hex(32)
    folder.mkdir(parents=True)
    named = [variable if "=" in variable else f"{variable}={os.environ[variable]}" for variable in variables]
    config = {"Image": image, "Env": [f"PATH={os.environ['PATH']}", *named], "Cmd": command, "Labels": labels}
    state = {"Status": "created", "Running": False, "Pid": 0, "ExitCode": 0, "OOMKilled": False, "Error": ""}
    image_id = "sha256:" + image.encode().hex().ljust(64, "0")[:64]
    write(folder, {"Id": folder.name, "Name": f"/{name}", "Image": image_id, "Config": config, "State": state})
    (folder / "memory").write_text(memory)
    (folder / "log").touch()
    subprocess.Popen(
        [sys.executable, "-S", __file__, "shim", folder.name],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    while (state := read(folder)["State"])["Status"] == "created" and not state["Error"]:
        time.sleep(0.01)
    if state["Error"]:
        fail(f"docker: Error response from daemon: failed to create task for container: {state['Error']}", 127)
    return folder.name


def shim(words):
    """Is the parent of a container's first process."""
    folder = STATE / "containers" / words[0]
    known = read(folder)
    variables = dict(variable.split("=", 1) for variable in known["Config"]["Env"])
    try:
        with (folder / "log").open("ab", buffering=0) as log:
            process = subprocess.Popen(
                known["Config"]["Cmd"], stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=variables
            )
    except OSError as error:
        known["State"] |= {
            "Error": f'exec: "{error.filename}": executable file not found in $PATH',
            "ExitCode": 127,
        }
        return write(folder, known)
    known["State"] |= {"Status": "running", "Running": True, "Pid": process.pid}
    write(folder, known)
    limit, was_killed = (folder / "memory").read_text(), False
    while process.poll() is None:
        if limit and resident(process.pid) > int(limit.rstrip("m")) << 20:
            process.kill()
            was_killed = True
        time.sleep(0.01)
    code = process.returncode if process.returncode >= 0 else 128 - process.returncode
    known["State"] |= {"Status": "exited", "Running": False, "Pid": 0, "ExitCode": code, "OOMKilled": was_killed}
    return write(folder, known)


def resident(pid):
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, IndexError):
        return 0


def pull(words, code=1):
    image = options(words)[1][0]
    if image not in lines("registry"):
        daemon_error(
            f"pull access denied for {image}, repository does not exist or may require 'docker login'", code
        )
    with (STATE / "images").open("a") as images:
        images.write(f"{image}\n")


def image(words):
    found = [
        name for name in lines("images") if name == words[1] or name.encode().hex().ljust(64, "0")[:64] in words[1]
    ]
    if not found:
        print("[]")
        daemon_error(f"No such image: {words[1]}")
    print(json.dumps([{"Id": "sha256:1", "RepoDigests": [f"{found[0].partition(':')[0]}@sha256:{'ab' * 32}"]}]))


def ps(words):
    given, _ = options(words)
    for folder in containers():
        known = read(folder)
        wanted = [name.removeprefix("label=").split("=", 1) for name in given.get("--filter", [])]
        if all(known["Config"]["Labels"].get(name) == value for name, value in wanted) and (
            known["State"]["Running"] or "--all" in given
        ):
            print(folder.name)


def inspect(words):
    _, (name,) = options(words)
    if not any(folder.name.startswith(name) or read(folder)["Name"] == f"/{name}" for folder in containers()):
        print("[]")
    print(json.dumps([read(find(name))]))


def logs(words):
    given, (name,) = options(words)
    folder = find(name)
    with (folder / "log").open("rb") as log:
        while True:
            is_running = folder.exists() and read(folder)["State"]["Running"]
            if text := log.read():
                os.write(1, text)
            if "--follow" not in given or not is_running:
                return
            time.sleep(0.02)


def wait(words):
    folder = find(words[0])
    while folder.exists() and (state := read(folder)["State"])["Running"]:
        time.sleep(0.02)
    print(128 + signal.SIGKILL if state["Running"] else state["ExitCode"])  # removed meanwhile


def kill(words):
    given, (name,) = options(words)
    folder = find(name)
    state = read(folder)["State"]
    if not state["Running"]:
        daemon_error(f"cannot kill container: {name}: container {folder.name} is not running")
    number = signal.Signals[f"SIG{given.get('--signal', ['KILL'])[0].removeprefix('SIG')}"]
    send(state["Pid"], number)
    print(name)


def send(pid, number):
    """Sends what the first process of a container gets."""
    masks = [line.split()[1] for line in Path(f"/proc/{pid}/status").read_text().splitlines() if "SigCgt" in line]
    if number == signal.SIGKILL or int(masks[0], 16) >> (number - 1) & 1:
        os.kill(pid, number)


def stop(words):
    given, (name,) = options(words)
    folder = find(name)
    deadline = time.monotonic() + float(given.get("-t", ["10"])[0])
    send(read(folder)["State"]["Pid"], signal.SIGTERM)
    while read(folder)["State"]["Running"]:
        if time.monotonic() > deadline:
            send(read(folder)["State"]["Pid"], signal.SIGKILL)
        time.sleep(0.02)
    print(name)


def rm(words):
    given, names = options(words)
    for name in names:
        if "--force" in given and not any(folder.name == name for folder in containers()):
            print(f"Error response from daemon: No such container: {name}", file=sys.stderr)  # not a failure
            continue
        folder = find(name)
        if read(folder)["State"]["Running"]:
            if "--force" not in given:
                daemon_error(f'cannot remove container "{name}": container is running: stop it or force remove')
            send(read(folder)["State"]["Pid"], signal.SIGKILL)
            while read(folder)["State"]["Running"]:
                time.sleep(0.01)
        (folder / "state.json").unlink()
        for file in folder.iterdir():
            file.unlink()
        folder.rmdir()
        print(name)


def execute(words):
    given, (name, *command) = options(words)
    folder = find(name)
    if not read(folder)["State"]["Running"]:
        daemon_error(f"container {folder.name} is not running")
    variables = dict(each.split("=", 1) for each in [*read(folder)["Config"]["Env"], *given.get("--env", [])])
    done = subprocess.run(command, env=variables, cwd=given.get("--workdir", [None])[0], check=False)
    sys.exit(done.returncode)


def top(words):
    folder = find(words[0])
    pid = str(read(folder)["State"]["Pid"])
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    subprocess.run(["ps", "-p", ",".join([pid, *children]), "-o", words[2]], check=True)


def compose(words):
    given, (verb, *rest) = options(words)
    files = [json.loads(Path(file).read_text()) for file in given["--file"]]
    project = Path(given["--file"][0]).parent.name
    services = files[0]["services"]
    for file in files[1:]:
        for name, content in file["services"].items():
            services[name] = {**services[name], **content}
    if verb == "config":
        print(json.dumps({"name": project, "services": services}))
        return
    given, names = options(rest)
    mine = [each for each in containers() if read(each)["Config"]["Labels"].get(PROJECT) == project]
    if verb == "down":
        rm(["--force", *(folder.name for folder in mine)])
        return
    here = {read(folder)["Config"]["Labels"][SERVICE]: folder for folder in mine}
    if verb == "ps":
        print("\n".join(folder.name for name, folder in here.items() if name in (names or here)))
    if verb == "pull":
        pull([services[names[0]]["image"]])
    if verb == "up":
        for name in [*services[names[0]].get("depends_on", {}), names[0]]:
            if name not in here:
                start_service(project, name, services[name])


def start_service(project, name, service):
    if service["image"] not in lines("images"):
        pull([service["image"]])
    variables = [f"{key}={value}".replace("$$", "$") for key, value in (service.get("environment") or {}).items()]
    labels = {**service.get("labels", {}), PROJECT: project, SERVICE: name}
    command = [word.replace("$$", "$") for word in service["command"]]
    create(service["image"], command, variables, labels, f"{project}-{name}-1")


FUNCTIONS = (run, pull, image, ps, inspect, logs, wait, kill, stop, rm, top, compose, shim)
VERBS = {function.__name__: function for function in FUNCTIONS} | {"exec": execute}


def main():
    if (STATE / "broken").exists():
        fail("Cannot connect to the Docker daemon at unix:///var/run/docker.sock. Is the docker daemon running?")
    verb, *words = sys.argv[1:]
    if verb == "--version":
        print("Docker version 28.2.2, build e6534b4")
        return
    if verb not in VERBS:
        fail(f"docker: unknown command: docker {verb}\n\nRun 'docker --help' for more information")
    VERBS[verb](words)


if __name__ == "__main__":
    main()
