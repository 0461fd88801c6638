//! Rot in what the pool itself keeps: every bit, every block, both copies (FAULTS.md E3–E7).
