"""How judge and workers talk: a JSON header and raw arrays after it. Nothing in it can be made to run.

A pickle from a student's process would run whatever the student wrote in it. A frame is only read.
"""

import json
import os
import struct

import numpy

DTYPES = {"<f4", "<f8", "<f2", "<i8", "<i4", "<i2", "|i1", "|u1", "|b1"}
LARGEST = 32 << 20
# Of the header of what a rank sends: bytes, and values, which as Python's objects are 20 times as much. The
# solutions send 13 kB and 2,338 values at most.
LONGEST, MOST_VALUES = 1 << 20, 100_000
DEEPEST = 50
WHOLE = range(-(1 << 63), 1 << 64)  # others fit into no array, and could not be compared with one


class BadFrame(Exception):
    pass


def pack(value):
    """Nested dicts, lists, strings, numbers, None, tensors and arrays as bytes."""
    arrays = []

    def plain(value):
        if value is None or type(value) is str or type(value) is bool:
            return value
        if isinstance(value, int) and int(value) not in WHOLE:
            raise BadFrame("a whole number of more than 64 bits")
        if isinstance(value, (str, int)):
            return value
        if isinstance(value, float):
            return value if value - value == 0 else {"@float": repr(value)}
        if isinstance(value, dict):
            return {"@dict": [[plain(key), plain(item)] for key, item in value.items()]}
        if isinstance(value, (list, tuple)):
            return [plain(item) for item in value]
        if isinstance(value, (bytes, bytearray)):
            value = numpy.frombuffer(bytes(value), dtype=numpy.uint8)
        elif hasattr(value, "detach"):
            value = value.detach().cpu()
            value = (value.float() if str(value.dtype) == "torch.bfloat16" else value).numpy()
        value = numpy.asarray(value)
        shape = value.shape
        value = numpy.ascontiguousarray(value)
        if value.dtype.str not in DTYPES:
            raise BadFrame(f"cannot send {type(value).__name__} of {value.dtype}")
        arrays.append((value.dtype.str, shape, value.tobytes()))
        return {"@array": len(arrays) - 1}

    head = {"value": plain(value), "arrays": [[kind, list(shape)] for kind, shape, _ in arrays]}
    text = ENCODER.encode(head).encode()
    return b"".join([struct.pack("<I", len(text)), text, *(data for _, _, data in arrays)])


def unpack(data, longest=1 << 32, most_values=1 << 32):
    """The value of a frame, or BadFrame. Arrays come back as numpy arrays of their own memory."""
    try:
        (length,) = struct.unpack_from("<I", data)
        head = bytes(data[4 : 4 + length])
        if length > longest or sum(map(head.count, (b",", b"[", b"{"))) > most_values:
            raise BadFrame("too many words and numbers outside of arrays")
        head = DECODER.decode(head.decode())
        place, arrays = 4 + length, []
        for kind, shape in head["arrays"]:
            if kind not in DTYPES or not all(type(size) is int and 0 <= size < 1 << 40 for size in shape):
                raise BadFrame("an array of an unknown kind")
            count = 1
            for size in shape:
                count *= size
            room = count * numpy.dtype(kind).itemsize
            if room > LARGEST or place + room > len(data):
                raise BadFrame("an array longer than its frame")
            arrays.append(numpy.frombuffer(data[place : place + room], dtype=kind).reshape(shape).copy())
            place += room
        if place != len(data):
            raise BadFrame("bytes after the end")
        return _value(head["value"], arrays)
    except BadFrame:
        raise
    except (struct.error, ValueError, KeyError, TypeError, IndexError, RecursionError, MemoryError) as error:
        raise BadFrame(f"not a frame ({type(error).__name__})") from None


def exactly(descriptor, size):
    """So many bytes of a pipe; fewer only if its other end was closed."""
    data = bytearray()
    while len(data) < size:
        more = os.read(descriptor, min(size - len(data), 1 << 20))
        if not more:
            break
        data += more
    return data


def _refuse(word):
    raise BadFrame(f"{word} in the header")


# Made once: json.dumps and json.loads would make one for each frame.
ENCODER, DECODER = json.JSONEncoder(allow_nan=False), json.JSONDecoder(parse_constant=_refuse)


def _value(value, arrays, depth=0):
    if depth > DEEPEST:
        raise BadFrame("nested too deep")
    if type(value) is str or value is None:
        return value
    if isinstance(value, int) and value not in WHOLE:
        raise BadFrame("a whole number of more than 64 bits")
    if isinstance(value, list):
        return [_value(item, arrays, depth + 1) for item in value]
    if isinstance(value, dict):
        ((tag, content),) = value.items()
        if tag == "@array" and type(content) is int and content >= 0:
            # One array under a thousand names would need the memory of a thousand when it is sent on.
            array, arrays[content] = arrays[content], None
            if array is None:
                raise BadFrame("an array that is there twice")
            return array
        if tag == "@float" and content in ("nan", "inf", "-inf"):
            return float(content)
        if tag == "@dict":
            return {_value(key, arrays, depth + 1): _value(item, arrays, depth + 1) for key, item in content}
        raise BadFrame("an unknown tag")
    return value
