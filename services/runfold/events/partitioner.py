"""Which partition a key lives in: Kafka's murmur2, as the Java client and librdkafka's `murmur2_random` compute it.

Runs never move, so whoever needs the partition of a run before it is appended (claims, gateway, simulation) asks here.
"""

_M = 0x5BD1E995
_SEED = 0x9747B28C
_MASK = 0xFFFFFFFF


def murmur2(data: bytes) -> int:
    """The 32-bit hash, unsigned."""
    length = len(data)
    whole = length & ~3
    h = _SEED ^ length
    for start in range(0, whole, 4):
        k = int.from_bytes(data[start : start + 4], "little") * _M & _MASK
        k = (k ^ k >> 24) * _M & _MASK
        h = h * _M & _MASK ^ k
    if whole != length:
        h = (h ^ int.from_bytes(data[whole:], "little")) * _M & _MASK
    h = (h ^ h >> 13) * _M & _MASK
    return h ^ h >> 15


def murmur2_partition(key: bytes, partitions: int) -> int:
    """The partition of a key. An empty key is a key like any other."""
    return (murmur2(key) & 0x7FFFFFFF) % partitions
