/* SPDX-License-Identifier: AGPL-3.0-only */
/*
 * pn_gate_text.c - what the gate for types of keys and values lets a model read: prose, code, JSON.
 *
 * Written for this purpose.  It should be what people send to models, hold names and numbers that come
 * back far from where they stood first (a damaged key is noticed when it is looked up), and never change:
 * figures of different versions could not be compared.
 */
#include "engine/pn_gate.h"

static const char *const gate_text[] = {
    /* prose */
    "The lighthouse at Kerrow Point had been dark for eleven years when Ines Valdane bought it for the price of a used van. ",
    "She did not intend to light it. She wanted a place with thick walls, one door, and no neighbours, where she could finish ",
    "the translation that three publishers had stopped asking about. The estate agent, a tall man called Prentiss, handed her ",
    "a ring with seven keys and said that only four of them opened anything.\n\n",
    "The first week it rained. On the eighth day the sky cleared, and she found that the stairs counted one hundred and ",
    "twelve steps, that the lamp room smelled of oil, and that somebody had been there before her: on the floor under the ",
    "great lens stood a tin cup, still half full of tea. The tea was warm. \"Hello?\" she said, and felt foolish. Nobody ",
    "answered. Below her the sea went on breaking against the rocks as it had for the last ten thousand years.\n\n",
    "That evening she rang Prentiss. \"Who else has keys?\" she asked. \"There are seven on the ring,\" he said, \"and I gave you ",
    "all of them. The old keeper had a set, but he died in the winter that the ferry sank.\" He paused. \"His daughter lives in ",
    "the village. Her name is Maud Tregenna. She mends nets, and she does not talk much, but she will talk to you if you ",
    "bring her something that needs mending.\"\n\n",
    "So Ines took the torn coat that she had been meaning to throw away and walked the two miles to the village. Maud ",
    "Tregenna was sixty, with hands like knotted rope. She looked at the coat, then at Ines, then at the ring of keys. \"Three ",
    "of those,\" she said, \"open nothing that is above the water.\" She would not say more until the coat was done, and she ",
    "took her time over it. When the last stitch was in, she bit off the thread and asked: \"Was the tea still warm?\"\n\n",
    "There are, broadly speaking, three ways to keep a thing from spoiling: take away the water, take away the air, or add ",
    "something that other living things dislike. Drying is the oldest. Fish split and hung in the wind lose four fifths of ",
    "their weight in six weeks and will keep for years. Salting works on the same principle from the other side, because salt ",
    "draws the water out of whatever would like to grow. Smoke adds a little of both, and acids that bacteria do not care for. ",
    "Canning, which came much later, takes away the air and kills what was in it with heat; the method was found in 1809 by a ",
    "confectioner who did not know why it worked, half a century before anybody had seen a microbe do harm. Cold does not kill ",
    "at all. It only slows things down, about twofold for every six degrees, which is why milk that turns in a day on the table ",
    "lasts about a week in the refrigerator, and why a power cut matters more in August than in January.\n\n",
    /* code */
    "Here is a small ring buffer in C, and below it a script that reads its log.\n\n",
    "```c\n#include <stdbool.h>\n#include <stdint.h>\n#include <string.h>\n\n",
    "#define RING_SIZE 256u      /* a power of two */\n\n",
    "typedef struct ring {\n    uint8_t data[RING_SIZE];\n    uint32_t head;          /* next byte to read */\n",
    "    uint32_t tail;          /* next byte to write */\n    uint64_t dropped;       /* bytes that found no room */\n} ring;\n\n",
    "static uint32_t ring_used(const ring *r) { return r->tail - r->head; }\n",
    "static uint32_t ring_free(const ring *r) { return RING_SIZE - ring_used(r); }\n\n",
    "/* All n bytes or none of them. */\nbool ring_put(ring *r, const void *src, uint32_t n)\n{\n    const uint8_t *p = src;\n",
    "    if (n > ring_free(r)) {\n        r->dropped += n;\n        return false;\n    }\n",
    "    for (uint32_t i = 0; i < n; i++)\n        r->data[(r->tail + i) & (RING_SIZE - 1)] = p[i];\n    r->tail += n;\n    return true;\n}\n\n",
    "/* Up to n bytes; returns how many. */\nuint32_t ring_get(ring *r, void *dst, uint32_t n)\n{\n    uint8_t *p = dst;\n",
    "    if (n > ring_used(r))\n        n = ring_used(r);\n",
    "    for (uint32_t i = 0; i < n; i++)\n        p[i] = r->data[(r->head + i) & (RING_SIZE - 1)];\n    r->head += n;\n    return n;\n}\n```\n\n",
    "```python\nimport json\nimport sys\nfrom collections import defaultdict\n\n\n",
    "def read_log(path):\n    \"\"\"Yield one dict per line, and skip what is not JSON.\"\"\"\n    with open(path, encoding=\"utf-8\") as f:\n",
    "        for number, line in enumerate(f, start=1):\n            try:\n                yield json.loads(line)\n",
    "            except json.JSONDecodeError as error:\n                print(f\"{path}:{number}: {error}\", file=sys.stderr)\n\n\n",
    "def dropped_by_host(records):\n    total = defaultdict(int)\n    for record in records:\n",
    "        if record.get(\"event\") == \"ring_put\" and not record.get(\"ok\", True):\n            total[record[\"host\"]] += record[\"bytes\"]\n",
    "    return dict(sorted(total.items(), key=lambda item: -item[1]))\n\n\n",
    "if __name__ == \"__main__\":\n    for host, size in dropped_by_host(read_log(sys.argv[1])).items():\n        print(f\"{host:20} {size:10,d}\")\n```\n\n",
    /* JSON */
    "And this is what it was run on, with the answer of the service that keeps the inventory:\n\n```json\n",
    "{\n  \"station\": \"Kerrow Point\",\n  \"keys\": 7,\n  \"steps\": 112,\n  \"readings\": [\n",
    "    {\"host\": \"alder-03\", \"event\": \"ring_put\", \"ok\": true, \"bytes\": 128, \"time\": \"2024-03-08T06:15:00Z\"},\n",
    "    {\"host\": \"alder-03\", \"event\": \"ring_put\", \"ok\": false, \"bytes\": 192, \"time\": \"2024-03-08T06:15:02Z\"},\n",
    "    {\"host\": \"birch-11\", \"event\": \"ring_put\", \"ok\": false, \"bytes\": 64, \"time\": \"2024-03-08T06:15:09Z\"},\n",
    "    {\"host\": \"birch-11\", \"event\": \"ring_get\", \"ok\": true, \"bytes\": 256, \"time\": \"2024-03-08T06:16:40Z\"},\n",
    "    {\"host\": \"alder-03\", \"event\": \"ring_put\", \"ok\": false, \"bytes\": 32, \"time\": \"2024-03-08T06:17:31Z\"}\n  ],\n",
    "  \"inventory\": {\n    \"lens\": {\"maker\": \"Harrow and Sons\", \"year\": 1871, \"panels\": 16, \"cracked\": [3, 9]},\n",
    "    \"lamp\": {\"maker\": \"Tregenna\", \"year\": 1906, \"fuel\": \"oil\", \"litres_per_night\": 2.4},\n",
    "    \"cups\": [{\"material\": \"tin\", \"contents\": \"tea\", \"celsius\": 61.5}, {\"material\": \"china\", \"contents\": null, \"celsius\": null}]\n  },\n",
    "  \"people\": [\n    {\"name\": \"Ines Valdane\", \"role\": \"owner\", \"since\": \"2024-02-27\", \"languages\": [\"es\", \"en\", \"pt\"]},\n",
    "    {\"name\": \"Maud Tregenna\", \"role\": \"visitor\", \"age\": 60, \"mends\": [\"nets\", \"coats\"]},\n",
    "    {\"name\": \"Prentiss\", \"role\": \"estate agent\", \"phone\": \"+44 1736 555 0142\"}\n  ]\n}\n```\n\n",
    "Question: which host dropped the most bytes, and how many? Answer: alder-03 dropped 192 + 32 = 224 bytes, birch-11 dropped ",
    "64, so alder-03 comes first in the script's output. Question: what is cracked? Answer: panels 3 and 9 of the lens, which ",
    "Harrow and Sons made in 1871 and which has 16 of them. Question: how many keys did Prentiss hand to Ines Valdane? Answer: ",
    "seven, of which four open something above the water. Question: which part of the C code decides that a write is refused? ",
    "Answer: the comparison of n with ring_free(r) in ring_put; the bytes are then counted in r->dropped and false is returned.\n\n",
    "The next morning the three remaining keys were gone from the ring. Ines counted twice. Then she put on the mended coat, ",
    "climbed the one hundred and twelve steps, and sat down beside the lens to wait for whoever drank tea in the lamp room of ",
    "a lighthouse that had been dark for eleven years.\n",
};

PN_INTERNAL const char *pn_gate_text(size_t i) { return i < PN_COUNT_OF(gate_text) ? gate_text[i] : NULL; }
