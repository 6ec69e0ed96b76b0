# The image's steps are the commands of docs/install.md. gcc: Triton compiles what launches its kernels.
# BASE is an exact patch release; a release of this project pins its digest too (CONTRIBUTING.md, Releasing).
# TORCH is the lock of torch: spark on a DGX Spark, blackwell for RTX 50 and RTX PRO, torch for other machines.
ARG BASE=python:3.12.12-slim-bookworm
FROM ${BASE} AS base
ENV PIP_NO_CACHE_DIR=1
RUN apt-get update
RUN apt-get install --yes --no-install-recommends gcc libc6-dev make
WORKDIR /firesteel

# Sources are mounted where make works, as compose.dev.yaml does; make installs what they need.
FROM base AS dev
CMD ["make", "test"]

FROM base AS serve
ARG TORCH=torch
COPY requirements requirements
RUN python3 -m venv .venv
RUN .venv/bin/pip install --require-hashes -r requirements/build.lock -r requirements/runtime.lock -r requirements/plots.lock
RUN .venv/bin/pip install -r requirements/${TORCH}.lock
COPY pyproject.toml README.md LICENSE ./
COPY src src
RUN .venv/bin/pip install --no-deps --no-build-isolation .
RUN useradd --create-home firesteel
ENV PATH=/firesteel/.venv/bin:$PATH
USER firesteel
WORKDIR /home/firesteel
# Made here, so that volumes on them belong to the user.
RUN mkdir --parents .cache/firesteel .cache/huggingface .triton
EXPOSE 8000
HEALTHCHECK --start-period=300s CMD \
    ["python", "-c", "import urllib.request; urllib.request.urlopen('http://127.0.0.1:8000/health')"]
ENTRYPOINT ["firesteel"]
CMD ["serve", "--host", "0.0.0.0"]
