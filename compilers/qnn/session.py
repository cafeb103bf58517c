"""Sessions on the QNN execution provider, with the provider's own log kept for the reasons it gives."""

from __future__ import annotations

import contextlib
import os
import re
import sys
from typing import TYPE_CHECKING, Final

from compilers.adapter import CompilerError
from compilers.ort_session import session_options
from compilers.qnn import wheel

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    import onnxruntime as ort

_VERBOSE: Final = 0  # ONNX Runtime's log levels
_WARNING: Final = 2
# Warnings that every session prints on every machine; they would only hide the ones that matter.
_NOISE: Final = (
    "File mapped weights feature",
    "EPContext encryption config unavailable",
    "Rerunning with verbose",
)
_LOUD: Final = re.compile(r"\[[WEF]:onnxruntime")


def npu_session(
    model: Path, provider_options: Mapping[str, str], *, log: Path | None = None, context: Path | None = None
) -> ort.InferenceSession:
    """Open `model` on the HTP through the QNN provider; with `context`, write a context binary at that path.

    With `log`, the provider's verbose log, which alone says why it left a node to the CPU, goes there, and
    warnings and errors go to stderr as well. What the provider leaves runs on the CPU without an exception:
    look at the session's assignment.

    Raises:
        CompilerError: ONNX Runtime or the QNN compiler refused.
    """
    import onnxruntime as ort

    _register()
    options = session_options(threads=1)
    options.log_severity_level = _WARNING if log is None else _VERBOSE
    if context is not None:
        options.add_session_config_entry("ep.context_enable", "1")
        options.add_session_config_entry("ep.context_file_path", str(context))
        options.add_session_config_entry("ep.context_embed_mode", "0")
    devices = [device for device in ort.get_ep_devices() if device.ep_name == wheel.PROVIDER]
    options.add_provider_for_devices(devices, {"backend_type": "htp", **provider_options})
    try:
        with contextlib.nullcontext() if log is None else _stderr_to(log):
            return ort.InferenceSession(str(model), options)
    except Exception as error:  # onnxruntime's exceptions share no base class of their own
        said = "" if log is None else _loud_lines(log)
        raise CompilerError(f"QNN refused {model.name}: {_reason(error)}", log=said) from error


def setup_failure(log: Path) -> str | None:
    """Return what the provider logged when it could not start at all; it raises nothing in that case."""
    text = log.read_text(encoding="utf-8", errors="replace")
    found = re.search(r"QNN SetupBackend failed (.+?)(?:\x1b\[m)?$", text, re.MULTILINE)
    return " ".join(found.group(1).split()) if found else None


def sdk_version(log: Path) -> str:
    """Return the build of Qualcomm's libraries, as the provider logged it; "" when it did not."""
    found = re.search(r"Backend build version: (\S+)", log.read_text(encoding="utf-8", errors="replace"))
    return found.group(1) if found else ""


def _register() -> None:
    """Register the plug-in with this process, once."""
    import onnxruntime as ort

    plugin = wheel.library(wheel.PLUGIN)
    if wheel.PROVIDER in {device.ep_name for device in ort.get_ep_devices()}:
        return
    try:
        ort.register_execution_provider_library(wheel.PROVIDER, str(plugin))
    except Exception as error:
        raise CompilerError(f"ONNX Runtime cannot load {plugin}: {_reason(error)}") from error


@contextlib.contextmanager
def _stderr_to(log: Path) -> Iterator[None]:
    """Send file descriptor 2, where the native code writes, to `log`; repeat what is loud on the true one."""
    sys.stderr.flush()
    true_stderr = os.dup(2)
    with log.open("wb") as sink:
        os.dup2(sink.fileno(), 2)
        try:
            yield
        finally:
            os.dup2(true_stderr, 2)
            os.close(true_stderr)
            print(_loud_lines(log), file=sys.stderr)  # noqa: T201 - the sandbox keeps it as compile.log


def _loud_lines(log: Path) -> str:
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    loud = [line for line in lines if _LOUD.search(line) and not any(noise in line for noise in _NOISE)]
    return "\n".join(re.sub(r"\x1b\[[\d;]*m", "", line) for line in loud)


def _reason(error: Exception) -> str:
    """Return the last part of ONNX Runtime's message: before it stand file names of its build machine."""
    text = " ".join(str(error).split())
    return text.rsplit("[ONNXRuntimeError] : ", 1)[-1][:400] or type(error).__name__
