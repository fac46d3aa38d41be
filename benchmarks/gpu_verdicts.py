"""The table of `gpu_suite`: for each question, the measured values and the verdict."""

import statistics
from collections.abc import Mapping
from typing import Any

from benchmarks import common, turns

_TARGET = 1.1  # our speed over PyTorch's
_LARGE_TARGET = 0.45  # of the peak
_LONGEST = 6  # kernels in a cell
_HEADER = ["question", "measured", "verdict"]
_Parts = Mapping[str, Mapping[str, Any]]
_Answer = tuple[str, str]


def table(parts: _Parts, is_smoke: bool) -> str:
    """Formats the table.

    Args:
      parts: for each part of the suite, its `state` and, if it wrote any, its `results`.
      is_smoke: whether the results are those of a smoke test.
    """
    base, base_128, large, large_128 = (
        ("tiny", 32) if is_smoke else shape for shape in (("base", 512), ("base", 128), ("large", 512), ("large", 128))
    )
    scanned, strong = "ours, scanned", "speed over PyTorch's strong form: 1.1?"
    questions: tuple[tuple[Any, ...], ...] = (
        ("roofs of this card", _roofs),
        ("dropout, residual sum and norm: is the kernel faster than XLA?", _norm),
        ("packed rows: does a kernel take less than twice the time of cuDNN on whole rows?", _packed, "packed rows"),
        ("the same with a window of 64", _packed, "packed rows, window 64"),
        (f"Base 512, {strong}", _ratio, "base", "ours", *base),
        (f"Base 128, {strong}", _ratio, "base", "ours", *base_128),
        (f"Large 512, scanned, {strong}", _ratio, "large", scanned, *large),
        (f"Large 128, scanned, {strong}", _ratio, "large", scanned, *large_128),
        ("Large 512, scanned: 45 % of the peak?", _share, *large),
        ("Large 128, scanned: 45 % of the peak?", _share, *large_128),
        ("Base 512: gain of packing", _packing, *base),
        ("Base 512: kernels of an update", _kernels, *base),
        ("translation, base", _translation),
        ("fine-tuning, speed over transformers: 1.1?", _fine_tuning),
    )
    rows = []
    for question, answer, *arguments in questions:
        try:
            rows.append([question, *answer(parts, *arguments)])
        except Exception as error:  # LookupError if the part or the case has failed; others must not end the suite
            rows.append([question, "", turns.message(error)])
    return common.table(_HEADER, rows)


def _find(parts: _Parts, part: str, **fields: Any) -> Mapping[str, Any]:
    """Returns the result with these fields. Raises LookupError with the reason if there is none."""
    for result in parts[part].get("results", ()):
        if fields.items() <= result.items():
            if reason := result.get("error") or result.get("skipped"):
                raise LookupError(f"{', '.join(map(str, fields.values()))}: {reason}")
            return result
    raise LookupError(f"{part}: {parts[part]['state']}")


def _case(parts: _Parts, part: str, name: str, size: str, length: int) -> Mapping[str, Any]:
    return _find(parts, part, name=name, size=size, length=length)


def _roof(parts: _Parts) -> float:
    """The operations per second of the fastest product."""
    rates = (result.get("operations_per_second", 0.0) for result in parts["kernels"].get("results", ()))
    if roof := max(rates, default=0.0):
        return float(roof)
    raise LookupError(f"kernels: {parts['kernels']['state']}")


def _roofs(parts: _Parts) -> _Answer:
    roof, moved = _roof(parts), _find(parts, "kernels", name="copy")["moved_per_second"]
    return f"{roof / 1e12:.3g} TFLOP/s, {moved / 1e12:.3g} TB/s", f"{roof / turns.PEAK:.1%} of the peak"


def _norm(parts: _Parts) -> _Answer:
    plain, fused = (_find(parts, "kernels", name=f"dropout, residual, norm, {name}") for name in ("xla", "triton"))
    share = fused["moved_per_second"] / _find(parts, "kernels", name="copy")["moved_per_second"]
    measured = f"{fused['microseconds']:,.0f} µs, XLA {plain['microseconds']:,.0f} µs"
    ratio = fused["microseconds"] / plain["microseconds"]
    return f"{measured}, {share:.2f} of the copy's rate", f"{'yes' if ratio < 1 else 'no'}: {ratio:.2f}"


def _packed(parts: _Parts, kind: str) -> _Answer:
    cudnn = _find(parts, "kernels", name="attention, whole rows, cudnn")["microseconds"]
    plain = _find(parts, "kernels", name=f"attention, {kind}, xla")
    names = [result["name"] for result in parts["kernels"]["results"] if "microseconds" in result]
    kernels = [name for name in names if name.startswith(f"attention, {kind}, ") and name != plain["name"]]
    measured = f"XLA {plain['microseconds']:,.0f} µs, cuDNN on whole rows {cudnn:,.0f} µs"
    if not kernels:
        return measured, "no kernel has computed it"
    best = min((_find(parts, "kernels", name=name) for name in kernels), key=lambda result: result["microseconds"])
    time, error, name = best["microseconds"], max(best["errors"].values()), best["name"].split(", ")[-1]
    verdict = f"{'yes' if time < 2 * cudnn and error < 1e-2 else 'no'}: {time / cudnn:.2f}"
    return f"{name} {time:,.0f} µs, errors up to {error:.1e}, {measured}", verdict


def _ratio(parts: _Parts, part: str, name: str, *shape: Any) -> _Answer:
    ours, theirs = _case(parts, part, name, *shape), _case(parts, "torch", "transformers, strong", *shape)
    ratio = ours["tokens_per_second"] / theirs["tokens_per_second"]
    measured = f"{ours['tokens_per_second']:,.0f} and {theirs['tokens_per_second']:,.0f} tokens/s"
    if "full_rows_seconds" in ours:
        measured += f", on full rows {ratio * ours['step_seconds'] / ours['full_rows_seconds']:.2f}"
    if ours.get("disturbed") or theirs.get("disturbed"):
        measured += ", while another case compiled"
    return measured, f"{_reached(ratio, _TARGET)}: {ratio:.2f}"


def _reached(value: float, target: float) -> str:
    return "reached" if value >= target else "missed"


def _share(parts: _Parts, *shape: Any) -> _Answer:
    rate = _case(parts, "large", "ours, scanned", *shape)["flops_per_second"]
    of_roof = f", {rate / _roof(parts):.1%} of the roof" if parts["kernels"].get("results") else ""
    verdict = f"{_reached(rate / turns.PEAK, _LARGE_TARGET)}: {rate / turns.PEAK:.1%}"
    return f"{rate / 1e12:.3g} TFLOP/s{of_roof}", verdict


def _packing(parts: _Parts, *shape: Any) -> _Answer:
    packed, padded = (_case(parts, "base", name, *shape) for name in ("ours, packed", "ours"))
    times = (f"{1e3 * case['step_seconds']:.1f}" for case in (packed, padded))
    gain = packed["real_tokens_per_second"] / padded["real_tokens_per_second"]
    return f"{' and '.join(times)} ms an update, packed and padded", f"{gain:.2f} times the real tokens/s"


def _kernels(parts: _Parts, *shape: Any) -> _Answer:
    ours = _case(parts, "base", "ours", *shape)
    if not ours.get("kernels", {}).get("groups"):
        raise LookupError(ours.get("profile_error", "the trace has no kernels of a GPU"))
    groups, longest = (
        ", ".join(f"{name} {ms:.1f} ms ({number:.0f})" for name, (ms, number) in list(times.items())[:_LONGEST])
        for times in (ours["kernels"]["groups"], ours["kernels"]["longest"])
    )
    return groups, f"longest: {longest}"


def _translation(parts: _Parts) -> _Answer:
    model = next((result["name"] for result in parts["translation"].get("results", ())), "").partition(",")[0]
    training, prediction = (_find(parts, "translation", name=f"{model}, {work}") for work in ("training", "prediction"))
    rates = (f"{result['per_second']:,.0f} {result['unit']}/s" for result in (training, prediction))
    return ", ".join(rates), f"training has {training['flops_per_second'] / turns.PEAK:.1%} of the peak"


def _fine_tuning(parts: _Parts) -> _Answer:
    speeds = [common.Speed(**result) for result in parts["fine-tuning"].get("results", ())]
    if not speeds:
        raise LookupError(f"fine-tuning: {parts['fine-tuning']['state']}")
    ratios = {speed.work: statistics.median(speed.ratios()) for speed in speeds}
    works = (f"{work} {ratio:.2f}" for work, ratio in ratios.items())
    return "; ".join(works), _reached(min(ratios.values()), _TARGET)
