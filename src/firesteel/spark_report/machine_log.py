"""Memory, clocks, temperature and power over time, sampled by a thread while a part runs."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from types import TracebackType

from firesteel.device import GIB, DeviceSpec
from firesteel.device.host_memory import find_host_memory
from firesteel.surroundings import Figure, ask_gpu

PERIOD_S = 5.0  # nvidia-smi takes a few hundredths of a second of one core


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineSample:
    seconds: float  # since the part began
    available_gib: float  # of the host's memory, which is also the GPU's on a GB10
    sm_mhz: Figure
    memory_mhz: Figure
    temperature_c: Figure
    draw_w: Figure


class MachineLog:
    """`with MachineLog(device) as log: ...`, then `log.samples`; figures that the driver lacks are None."""

    def __init__(self, device: DeviceSpec, period_s: float = PERIOD_S) -> None:
        self.samples: list[MachineSample] = []
        self._device, self._period_s = device, period_s
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="machine-log", daemon=True)

    def __enter__(self) -> MachineLog:
        self._start = time.monotonic()
        self._sample()
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._is_over.set()
        self._thread.join()
        self._sample()

    def _run(self) -> None:
        while not self._is_over.wait(self._period_s):
            self._sample()

    def _sample(self) -> None:
        state = ask_gpu(self._device)
        clocks, power = state.clocks_mhz or {}, state.power or {}
        self.samples.append(
            MachineSample(
                seconds=round(time.monotonic() - self._start, 1),
                available_gib=round(find_host_memory().available_bytes / GIB, 2),
                sm_mhz=clocks.get("sm"),
                memory_mhz=clocks.get("memory"),
                temperature_c=power.get("temperature_c"),
                draw_w=power.get("draw_w"),
            )
        )
