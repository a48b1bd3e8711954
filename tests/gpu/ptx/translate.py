#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Turns nvcc's PTX into C that runs on the CPU (ptx.h): each kernel becomes a function that runs one thread up
to its next barrier. Registers keep their bits: floats are uint32_t and uint64_t between two instructions.

usage: translate.py IN.ptx OUT.c

It knows the instructions that the kernels use, as the PTX ISA manual defines them, and refuses all others, so a
new one cannot be taken for something else.
"""
import re
import sys

# The register types of PTX, in C. A type of an instruction has its size in its name, too; signed types begin
# with s.
REGISTERS = {"pred": "uint8_t", "b16": "uint16_t", "b32": "uint32_t", "f32": "uint32_t", "b64": "uint64_t",
             "f64": "uint64_t"}
SIMPLE = {"and": "&", "or": "|", "xor": "^", "add": "+", "sub": "-", "mul": "*", "div": "/", "rem": "%"}
COMPARE = {"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">=", "lo": "<", "ls": "<=", "hi": ">",
           "hs": ">="}
# Comparisons of floats that are also true if an operand is a NaN, each with the comparison of which it is the
# opposite.
UNORDERED = {"equ": "ne", "neu": "eq", "ltu": "ge", "leu": "gt", "gtu": "le", "geu": "lt"}

HEADER = """/* Made by translate.py. */
#include <math.h>
#include <string.h>

#include "tests/gpu/ptx/ptx.h"

static inline float f32(uint32_t bits) { float f; memcpy(&f, &bits, 4); return f; }
static inline uint32_t bits32(float f) { uint32_t bits; memcpy(&bits, &f, 4); return bits; }
static inline double f64(uint64_t bits) { double f; memcpy(&f, &bits, 8); return f; }
static inline uint64_t bits64(double f) { uint64_t bits; memcpy(&bits, &f, 8); return bits; }
/* rcp.approx.ftz.f64 has the upper 32 bits of a reciprocal only. */
static inline uint64_t upper_rcp(uint64_t x) { return bits64(1.0 / f64(x)) & 0xffffffff00000000u; }
"""


class Unknown(Exception):
    """An instruction, an operand or a type that is not translated."""


def size(kind):
    """Bytes of a type such as f32."""
    return int(re.search(r"\d+$", kind).group()) // 8


def unsigned(kind):
    return "uint8_t" if kind == "pred" else f"uint{8 * size(kind)}_t"


def typed(kind):
    """The C type of an operand as the instruction sees it; floats are kept as their bits."""
    return f"int{8 * size(kind)}_t" if kind[0] == "s" else unsigned(kind)


def is_float(kind):
    return kind in ("f32", "f64")


def as_float(kind, x):
    return f"{kind}({x})"


def as_bits(kind, x):
    return f"bits{kind[1:]}({x})"


def operands(text):
    """Splits at commas outside brackets."""
    return [part.strip() for part in re.findall(r"(?:\{[^}]*\}|\[[^\]]*\]|[^,{\[])+", text)]


class Kernel:
    """One entry of the module, translated statement by statement."""

    def __init__(self, name, parameters, threads, body):
        self.name, self.threads, self.barriers, self.shared_bytes = name, threads, 0, 0
        one = re.fullmatch(r"\.param \.align \d+ \.b8 (\w+)\[(\d+)\]", " ".join(parameters.split()))
        if not one:
            raise Unknown(f"{name}: parameters {parameters}")
        self.parameter, self.args_bytes = one.group(1), int(one.group(2))
        self.registers, self.shared, self.code = {}, {}, []
        for line in body.splitlines():
            self.statement(line.strip())

    # ---- statements ----

    def statement(self, line):
        if not line or line in "{}" or line.startswith((".pragma", ".loc")):
            return
        if line.startswith(".reg "):
            self.declare(line)
        elif line.startswith(".shared "):
            self.share(line)
        elif line.endswith(":"):
            self.code.append(f"{self.label(line[:-1])}: ;")
        else:
            self.instruction(line)

    def declare(self, line):
        kind, name, count = re.fullmatch(r"\.reg \.(\w+)\s+%(\w+)(?:<(\d+)>)?\s*;", line).groups()
        for register in [f"{name}{i}" for i in range(int(count))] if count else [name]:
            self.registers[register] = kind

    def share(self, line):
        align, name, count = re.fullmatch(r"\.shared \.align (\d+) \.b8 (\S+)\[(\d+)\];", line).groups()
        self.shared_bytes = -(-self.shared_bytes // int(align)) * int(align)
        self.shared[name] = self.shared_bytes
        self.shared_bytes += int(count)

    @staticmethod
    def label(text):
        return "L" + re.sub(r"\W", "_", text)

    def instruction(self, line):
        found = re.fullmatch(r"(?:@(!?)%(\w+)\s+)?([a-z][\w.:]*)\s*(.*);", line)
        if not found:
            raise Unknown(line)
        negated, guard, name, rest = found.groups()
        try:
            text = self.translate(name.split("."), operands(rest), bool(guard))
        except (Unknown, KeyError, ValueError, AttributeError) as error:
            raise Unknown(f"{self.name}: {line} ({error})") from error
        self.code.append(f"if ({negated}r->{guard}) {{ {text} }}" if guard else text)

    def translate(self, parts, args, guarded):
        base, kind = parts[0], parts[-1]
        if base == "bra":
            return f"goto {self.label(args[0])};"
        if base == "ret":
            return "return 0;"
        if base == "bar":
            return self.barrier(parts, args, guarded)
        if base in ("ld", "st", "atom"):
            return getattr(self, base)(parts, args)
        if base == "mov":
            return self.mov(kind, *args)
        known = [k for k in parts[1:] if k not in ("to", "global", "shared", "lo", "wide", "rn", "approx", "ftz",
                                                   *COMPARE, *UNORDERED, "num", "nan") and not is_type(k)]
        if known:
            raise Unknown(f"modifier {known[0]}")
        x = [self.value(a) for a in args[1:]]
        return self.put(args[0], self.result(base, parts, kind, x))

    def result(self, base, parts, kind, x):
        """The value of an instruction without side effects."""
        if base == "cvta":
            return x[0]
        if base == "cvt":
            return convert(parts[-2], kind, x[0], "rn" in parts)
        if base == "setp":
            return compare(parts[1], kind, *x)
        if base == "selp":
            return f"{x[2]} ? {x[0]} : {x[1]}"
        if is_float(kind):
            return float_result(base, parts, kind, x)
        if kind == "pred":
            return f"!{x[0]}" if base == "not" else f"{x[0]} {SIMPLE[base]} {x[1]}"
        return whole_result(base, parts, kind, x)

    def barrier(self, parts, args, guarded):
        if parts != ["bar", "sync"] or args != ["0"] or guarded:
            raise Unknown("a barrier of its own kind")
        self.barriers += 1
        return (f"if (!ptx_leaves_out({self.barriers})) return {self.barriers};\n"
                f"barrier_{self.barriers}: ;")

    # ---- operands ----

    def register(self, text):
        name = re.fullmatch(r"%(\w+)", text).group(1)
        if name not in self.registers:
            raise Unknown(text)
        return name

    def value(self, text):
        if text == "%tid.x":
            return "t->tid"
        if text == "%ctaid.x":
            return "t->ctaid"
        if text.startswith("%"):
            return f"r->{self.register(text)}"
        if re.fullmatch(r"0[fF][0-9A-Fa-f]{8}", text):
            return f"0x{text[2:]}u"
        if re.fullmatch(r"0[dD][0-9A-Fa-f]{16}", text):
            return f"0x{text[2:]}ull"
        if re.fullmatch(r"-?\d+", text):
            return f"(uint64_t){text}ll"
        if text == self.parameter:
            return "(uint64_t)(uintptr_t)t->args"
        if text in self.shared:
            return f"{self.shared[text]}u"
        raise Unknown(text)

    def put(self, target, value):
        name = self.register(target)
        return f"r->{name} = ({REGISTERS[self.registers[name]]})({value});"

    def address(self, text, space, nbytes, access):
        base, offset = re.fullmatch(r"\[([%\w$]+)(?:\+(-?\d+))?\]", text).groups()
        where = f"{self.value(base)} + (uint64_t){offset or 0}ll"
        if space == "param":
            return f"(const void *)(uintptr_t)({where})"
        if space == "shared":
            # Shared addresses have 32 bits.
            return f"ptx_shared(t, (uint32_t)({where}), {nbytes}, {access})"
        if space == "global":
            return f"ptx_global(t, {where}, {nbytes}, {access})"
        raise Unknown(space)

    # ---- memory ----

    @staticmethod
    def listed(text):
        return operands(text[1:-1]) if text.startswith("{") else [text]

    def ld(self, parts, args):
        space, kind = parts[1], parts[-1]
        self.check_modifiers(parts[2:-1])
        targets = self.listed(args[0])
        at = self.address(args[1], space, size(kind) * len(targets), "PTX_READ")
        loads = "".join(self.put(target, f"q[{i}]") for i, target in enumerate(targets))
        return f"{{ {typed(kind)} q[{len(targets)}]; memcpy(q, {at}, sizeof(q)); {loads} }}"

    def st(self, parts, args):
        space, kind = parts[1], parts[-1]
        self.check_modifiers(parts[2:-1])
        values = self.listed(args[1])
        at = self.address(args[0], space, size(kind) * len(values), "PTX_WRITE")
        listed = ", ".join(f"({unsigned(kind)}){self.value(v)}" for v in values)
        return f"{{ {unsigned(kind)} q[] = {{{listed}}}; memcpy({at}, q, sizeof(q)); }}"

    @staticmethod
    def check_modifiers(modifiers):
        for one in modifiers:
            if one not in ("v2", "v4", "wb", "nc"):
                raise Unknown(one)

    def atom(self, parts, args):
        if parts[2:] != ["add", "u32"]:
            raise Unknown("only atom.SPACE.add.u32")
        at = self.address(args[1], parts[1], 4, "PTX_ATOMIC")
        return (f"{{ uint32_t *q = {at}, old = *q; *q += (uint32_t){self.value(args[2])}; "
                f"{self.put(args[0], 'old')} }}")

    def mov(self, kind, target, source):
        half = 4 * size(kind) if kind != "pred" else 0
        if target.startswith("{"):
            low, high = self.listed(target)
            return (f"{{ {unsigned(kind)} q = {self.value(source)}; {self.put(low, 'q')} "
                    f"{self.put(high, f'q >> {half}')} }}")
        if source.startswith("{"):
            low, high = (self.value(s) for s in self.listed(source))
            return self.put(target, f"({unsigned(kind)}){high} << {half} | {low}")
        if kind == "pred":
            return self.put(target, f"{self.value(source)} != 0")
        return self.put(target, self.value(source))

    # ---- the function ----

    def text(self):
        fields = " ".join(f"{REGISTERS[kind]} {name};" for name, kind in self.registers.items())
        jumps = " ".join(f"case {i}: goto barrier_{i};" for i in range(1, self.barriers + 1))
        lines = "\n".join(self.code)
        return (f"struct {self.name}_regs {{ {fields} }};\n"
                f"static unsigned run_{self.name}(void *regs, unsigned at, const struct ptx_thread *t)\n{{\n"
                f"struct {self.name}_regs *r = regs;\nswitch (at) {{ {jumps} }}\n{lines}\nreturn 0;\n}}\n")

    def row(self):
        return (f"{{\"{self.name}\", {self.args_bytes}, sizeof(struct {self.name}_regs), {self.shared_bytes}, "
                f"{self.threads}, {self.barriers}, run_{self.name}}},\n")


# ---- arithmetic ----

def is_type(text):
    return bool(re.fullmatch(r"[busf](8|16|32|64)|pred", text))


def convert(to, source, x, rounded):
    if is_float(to) and is_float(source):
        if size(to) < size(source) and not rounded:
            raise Unknown("rounding")
        return as_bits(to, f"({'float' if to == 'f32' else 'double'}){as_float(source, x)}")
    if is_float(to):
        if not rounded:
            raise Unknown("rounding")
        return as_bits(to, f"({'float' if to == 'f32' else 'double'})({typed(source)}){x}")
    if is_float(source):
        raise Unknown("a float to an integer")
    return f"({typed(to)})({typed(source)}){x}"


def compare(how, kind, x, y):
    if not is_float(kind):
        return f"({typed(kind)}){x} {COMPARE[how]} ({typed(kind)}){y}"
    x, y = as_float(kind, x), as_float(kind, y)
    if how in ("num", "nan"):
        return f"{'!' if how == 'num' else ''}(isnan({x}) || isnan({y}))"
    if how in UNORDERED:
        return f"!({compare_floats(UNORDERED[how], x, y)})"
    return compare_floats(how, x, y)


def compare_floats(how, x, y):
    # ne is false for a NaN in PTX, and true in C.
    return f"{x} < {y} || {x} > {y}" if how == "ne" else f"{x} {COMPARE[how]} {y}"


def float_result(base, parts, kind, x):
    if base == "rcp":
        if parts[1:] != ["approx", "ftz", "f64"]:
            raise Unknown("a reciprocal")
        return f"upper_rcp({x[0]})"
    if base in ("neg", "abs"):
        sign = f"{1 << (8 * size(kind) - 1):#x}u"
        return f"{x[0]} ^ {sign}" if base == "neg" else f"{x[0]} & ~{sign}"
    # An operation without a rounding modifier rounds to nearest (rn), too, but ptxas may fuse it: only the
    # build with fused arithmetic (see mutants.py) has such operations.
    if parts[1:] not in (["rn", kind], [kind]):
        raise Unknown("rounding")
    values = [as_float(kind, one) for one in x]
    suffix = "f" if kind == "f32" else ""
    if base in ("fma", "sqrt"):
        return as_bits(kind, f"{base}{suffix}({', '.join(values)})")
    if base in ("add", "sub", "mul", "div"):
        return as_bits(kind, f"{values[0]} {SIMPLE[base]} {values[1]}")
    raise Unknown(base)


def whole_result(base, parts, kind, x):
    width = 8 * size(kind)
    bare = [f"({unsigned(kind)})({one})" for one in x]
    seen = [f"({typed(kind)})({one})" for one in x]
    if base == "mul" and parts[1] == "wide":
        wide = f"{'' if kind[0] == 's' else 'u'}int{2 * width}_t"
        return f"({wide}){seen[0]} * ({wide}){seen[1]}"
    if base in ("mul", "mad") and parts[1] != "lo":
        raise Unknown("half of a product")
    if base == "mad":
        return f"{bare[0]} * {bare[1]} + {bare[2]}"
    if base in ("div", "rem"):
        return f"{seen[0]} {SIMPLE[base]} {seen[1]}"
    if base in SIMPLE:
        return f"{bare[0]} {SIMPLE[base]} {bare[1]}"
    if base in ("min", "max"):
        return f"{seen[0]} {'<' if base == 'min' else '>'} {seen[1]} ? {seen[0]} : {seen[1]}"
    if base in ("neg", "not"):
        return f"{'-' if base == 'neg' else '~'}{bare[0]}"
    # Shifts by a 32-bit number; from the width on, everything is shifted out.
    by = f"(uint32_t)({x[1]})"
    if base == "shl":
        return f"{by} >= {width} ? 0 : {bare[0]} << {by}"
    if base == "shr":
        return f"{seen[0]} >> ({by} >= {width} ? {width - 1} : {by})" if kind[0] == "s" else \
            f"{by} >= {width} ? 0 : {bare[0]} >> {by}"
    raise Unknown(base)


def kernels(source):
    source = re.sub(r"//.*", "", source)
    entries = re.finditer(r"\.visible \.entry (\w+)\((.*?)\)\s*\.maxntid (\d+)(?:, 1, 1)?\s*\n\{\n(.*?)\n\}\n",
                          source, re.S)
    found = [Kernel(m.group(1), m.group(2), int(m.group(3)), m.group(4)) for m in entries]
    if len(found) != source.count(".entry"):
        raise Unknown(f"{source.count('.entry')} entries, {len(found)} of them are as expected")
    return found


def main():
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    with open(sys.argv[1], encoding="utf-8") as file:
        try:
            found = kernels(file.read())
        except Unknown as error:
            sys.exit(f"{sys.argv[1]}: {error}: translate.py does not know it")
    rows = "".join(kernel.row() for kernel in found)
    with open(sys.argv[2], "w", encoding="utf-8") as out:
        out.write(HEADER + "".join(kernel.text() for kernel in found)
                  + f"const struct ptx_kernel ptx_kernels[] = {{\n{rows}{{0}}}};\n")


if __name__ == "__main__":
    main()
