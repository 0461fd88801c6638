//! Valid inputs: the golden bytes of the formats, which their own tests pin.

/// Bytes of a text of hexadecimal digits.
pub(crate) fn hex(text: &str) -> Vec<u8> {
    let digits: Vec<u32> = text.chars().filter_map(|digit| digit.to_digit(16)).collect();
    digits.chunks(2).map(|pair| (pair[0] << 4 | pair[1]) as u8).collect()
}

macro_rules! of_engine {
    ($($name:literal),*) => {
        vec![$($crate::samples::hex(include_str!(concat!(
            "../../../gabion-engine/tests/engine/golden/", $name, ".hex"
        )))),*]
    };
}

macro_rules! of_node {
    ($($name:literal),*) => {
        vec![$($crate::samples::hex(include_str!(concat!(
            "../../../gabion-node/tests/golden/", $name, ".hex"
        )))),*]
    };
}

pub(crate) use {of_engine, of_node};

/// Frames between members, one of each kind.
pub(crate) fn frames() -> Vec<Vec<u8>> {
    let text = include_str!("../../../gabion-replication/tests/golden/frames.txt");
    let mut frames: Vec<String> = Vec::new();
    for line in text.lines() {
        match (line.starts_with("  "), frames.last_mut()) {
            (true, Some(frame)) => frame.push_str(line),
            _ => frames.push(String::new()),
        }
    }
    frames.retain(|frame| !frame.is_empty());
    frames.iter().map(|frame| hex(frame)).collect()
}
