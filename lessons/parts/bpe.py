"""Byte-pair encoding in plain Python. Tokens are bytes, and sequences of bytes that occur often.

    merges = learn([b"some text", b"more text"], 300)  # pairs to merge, most frequent first
    encoder = Encoder(merges)
    tokens = encoder.encode(b"a text")                 # numbers from 0 to 299
    encoder.decode(tokens)                             # b"a text" again

A token never crosses the end of a word. So learn and encode handle each distinct word only once,
however often the word occurs. That makes plain Python fast enough for 40 MB of source code.
"""

import re
from collections import Counter, defaultdict
from heapq import heapify, heappop, heappush
from itertools import pairwise

# Each byte belongs to exactly one word. If single spaces were words, a model that has written "#" could
# go on writing spaces forever, so several spaces are one word. The last space belongs to what follows it.
WORD = re.compile(
    rb"[^\nA-Za-z0-9]?[A-Za-z]+"  # letters, with one sign or space before them: "(self", ".grad"
    rb"| ?[^\sA-Za-z0-9]+(?:\n *)?"  # signs, with the line break and the indentation after them: "):\n    "
    rb"|\n *"
    rb"| +(?= )"
    rb"|\s"
    rb"|[0-9]"
)


def learn(texts, size):
    """Return the pairs to merge to get `size` tokens. Each merge takes the most frequent pair."""
    counts = Counter()
    for text in texts:
        counts.update(WORD.findall(text))
    words = [list(word) for word in counts]
    repeats = list(counts.values())

    pairs = Counter()
    places = defaultdict(set)  # the words that contain a pair
    for place, word in enumerate(words):
        for pair in pairwise(word):
            pairs[pair] += repeats[place]
            places[pair].add(place)
    heap = [(-count, pair) for pair, count in pairs.items()]
    heapify(heap)

    merges = []
    while heap and len(merges) < size - 256:
        count, pair = heappop(heap)
        if -count != pairs[pair]:
            if pairs[pair] > 0:  # earlier merges have made this pair less frequent
                heappush(heap, (-pairs[pair], pair))
            continue
        token = 256 + len(merges)
        merges.append(pair)
        created = set()
        for place in places.pop(pair):
            word = words[place]
            for old in pairwise(word):
                pairs[old] -= repeats[place]
            word = merge(word, pair, token)
            words[place] = word
            for new in pairwise(word):
                pairs[new] += repeats[place]
                places[new].add(place)
                if token in new:
                    created.add(new)
        for new in created:
            heappush(heap, (-pairs[new], new))
    return merges


def merge(word, pair, token):
    """Replace each occurrence of the pair in a word by the token."""
    merged = []
    position = 0
    while position < len(word):
        if tuple(word[position : position + 2]) == pair:
            merged.append(token)
            position += 2
        else:
            merged.append(word[position])
            position += 1
    return merged


class Encoder:
    def __init__(self, merges):
        self.order = {pair: number for number, pair in enumerate(merges)}
        self.known = {}  # the tokens of each word that has been encoded before
        self.bytes = [bytes([value]) for value in range(256)]
        for first, second in merges:
            self.bytes.append(self.bytes[first] + self.bytes[second])

    def encode(self, text):
        tokens = []
        for word in WORD.findall(text):
            if word not in self.known:
                self.known[word] = self.encode_word(list(word))
            tokens += self.known[word]
        return tokens

    def encode_word(self, word):
        """Merge pairs in the order in which they were learned."""
        while True:
            found = [pair for pair in pairwise(word) if pair in self.order]
            if not found:
                return word
            first = min(found, key=self.order.get)
            word = merge(word, first, 256 + self.order[first])

    def decode(self, tokens):
        return b"".join(self.bytes[token] for token in tokens)
