"""``bench/memory.py --locomo`` reads LoCoMo's file, which is no part of relay."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

BENCH = Path(__file__).resolve().parents[3] / "bench" / "memory.py"


def test_questions_of_locomo_are_asked_where_their_evidence_is(tmp_path: Path) -> None:
    turn = {"speaker": "Ann", "dia_id": "D1:3", "text": "Look!", "blip_caption": "a brown dog"}
    spoken = {"session_1_date_time": "1:56 pm on 8 May, 2023", "session_1": [turn]}
    asked = [
        {"question": "Which dog did Ann share?", "category": 4, "evidence": ["D1:3; D9:01"]},
        {"question": "Why?", "category": 5, "evidence": []},
    ]
    file = tmp_path / "locomo.json"
    file.write_text(json.dumps([{"conversation": spoken, "qa": asked}]))
    command = [sys.executable, str(BENCH), "--locomo", str(file), "--json"]
    done = subprocess.run(command, capture_output=True, check=True, timeout=60)
    found = json.loads(done.stdout)["LoCoMo, words"]
    assert found["single"] == found["all"]
    assert (found["all"]["questions"], found["all"]["recall@5"], found["all"]["mrr"]) == (1, 1, 1)
