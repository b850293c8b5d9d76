"""What ranx says of rankings; runs under a Python that has it, and imports nothing of ours.

Takes JSON on its standard input: `judgements`, the relevant keys of each query; `found`, the keys that each
ranking has for it, best first; and `branches`, two such rankings to be fused. Prints JSON: of each query
`ndcg@10` and `recall@10` in each ranking, and the fused scores by key.
"""

import json
import sys

from ranx import Qrels, Run, evaluate, fuse

METRICS = ["ndcg@10", "recall@10"]
RRF_K = 60
NOTHING = {"nothing": 0.0}  # ranx takes no empty ranking; no key is called so


def as_run(found: dict[str, list[str]]) -> Run:
    """Give ranx scores that fall with the rank, so that it keeps the order."""
    return Run(
        {
            query: {key: 1 / rank for rank, key in enumerate(keys, 1)} or NOTHING
            for query, keys in found.items()
        }
    )


def main() -> None:
    asked = json.load(sys.stdin)
    judged = Qrels({query: dict.fromkeys(keys, 1) for query, keys in asked["judgements"].items()})
    measured = {}
    for name, found in asked["found"].items():
        run = as_run(found)
        evaluate(judged, run, METRICS)
        measured[name] = {metric: dict(run.scores[metric]) for metric in METRICS}
    runs = [as_run(found) for found in asked["branches"]]
    fused = fuse(runs=runs, norm=None, method="rrf", params={"k": RRF_K}).to_dict()
    json.dump({"measured": measured, "fused": fused}, sys.stdout, default=float)


if __name__ == "__main__":
    main()
