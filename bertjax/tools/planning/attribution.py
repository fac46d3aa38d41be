"""Attribution of a compiled program's costs: to which part of the model an instruction belongs, and what it does."""

import collections
import re
from collections.abc import Callable, Iterator, Sequence

from bertjax.tools.planning import kernels
from bertjax.tools.planning.hlo import COLLECTIVES, Computation, Instruction

# The first pattern that matches the name of an operation, which contains the names of modules and scopes.
_PARTS = (
    ("optimizer", r"optimizer|opt_state"),
    ("heads", r"masked_lm|next_sentence|pooler|classifier|qa_outputs|logits"),
    ("embeddings", r"embeddings"),
    ("attention", r"attention"),
    ("feed-forward", r"intermediate|activation|[lL]ayer.*\boutput(_norm)?\b"),
)
# Patterns that are tried if no name matches one above.
_REST = (
    ("layers", r"Layer|layers|encoder|decoder"),  # dropout and sums between sublayers, and slices of stacked arrays
    ("heads", r"jvp"),  # the loss
)
_CASTS = {"copy", "transpose", "convert", "bitcast", "broadcast", "reshape", "slice", "pad", "concatenate", "iota"}
_CASTS |= {"parameter", "constant", "tuple", "get-tuple-element", "copy-start", "slice-start", "bitcast-convert"}
# The first rule of which an opcode is in the instruction, or whose pattern matches the name of an operation in it.
_KINDS: tuple[tuple[str, set[str], str], ...] = (
    ("communication", {*COLLECTIVES, *(f"{name}-start" for name in COLLECTIVES)}, ""),
    ("kernels", {"kernel"}, ""),  # flash attention
    ("matrix products", {"dot", "convolution", "product kernel"}, ""),
    ("optimizer", set(), r"\boptimizer\b"),
    ("random bits", {"xor", "rng-bit-generator", "unsigned numbers"}, "threefry"),
    ("activation", {"erf"}, r"\bactivation\b|gelu"),
    ("softmax", {"exponential"}, "softmax|reduce_max"),
    ("norm", set(), r"norm\b"),
    ("lookup", {"gather", "scatter"}, ""),
    ("dropout", set(), r"\bdrop"),
    ("sums", {"reduce"}, ""),
    ("slices", {"dynamic-slice", "dynamic-update-slice", "dynamic-slice-start"}, ""),
)
_MAX_DISTANCE = 5  # of unnamed instructions from the next named one

Content = Sequence[tuple[Computation, Instruction]]


def part_of(inside: Computation, instruction: Instruction, contents: Content, caller: str) -> str:
    """Returns the part of the model that an instruction belongs to; "other" if no name tells.

    The names of these operations are tried in turn: matrix products in the instruction, the instruction, others in it,
    the operations that its operands come from, those that use its result, and the caller.

    Args:
      inside: the computation of the instruction.
      instruction: the instruction.
      contents: the instructions of a fusion, or the instruction.
      caller: the name of the loop or condition that the computation belongs to.
    """
    names = [inner.op_name for _, inner in contents if inner.opcode in ("dot", "convolution")]
    names += [instruction.op_name]
    names += [name for name, _ in collections.Counter(inner.op_name for _, inner in contents).most_common()]
    names += [*_names(inside, instruction, _producers), *_names(inside, instruction, _users), caller]
    for patterns in (_PARTS, _REST):
        for name in names:
            for part, pattern in patterns:
                if re.search(pattern, name):
                    return part
    return "other"


def _producers(inside: Computation, instruction: Instruction) -> Iterator[Instruction]:
    sources = (inside.instructions[name] for name in instruction.operands if name in inside.instructions)
    return (source for source in sources if source.opcode not in ("tuple", "constant"))  # all parts share these


def _users(inside: Computation, instruction: Instruction) -> Iterator[Instruction]:
    return inside.uses(instruction.name)


def _names(
    inside: Computation,
    instruction: Instruction,
    follow: Callable[[Computation, Instruction], Iterator[Instruction]],
    distance: int = _MAX_DISTANCE,
) -> Iterator[str]:
    """Yields the names of the next named instructions in one direction."""
    for neighbor in follow(inside, instruction):
        if neighbor.op_name:
            yield neighbor.op_name
        elif distance:
            yield from _names(inside, neighbor, follow, distance - 1)


def kind_of(instruction: Instruction, contents: Content) -> str:
    """Returns what an instruction does, such as "softmax"."""
    opcodes = {_opcode(inner) for _, inner in contents}
    if all(shape.kind in ("u8", "u16", "u32", "u64") for shape in instruction.results):
        opcodes.add("unsigned numbers")
    names = " ".join({instruction.op_name, *(inner.op_name for _, inner in contents)})
    for kind, marks, pattern in _KINDS:
        if opcodes & marks or (pattern and re.search(pattern, names)):
            return kind
    return "casts and copies" if opcodes <= _CASTS else "elementwise"


def _opcode(instruction: Instruction) -> str:
    if kernels.is_custom(instruction):
        return "kernel"
    return "product kernel" if kernels.target(instruction).startswith("__cublas") else instruction.opcode
