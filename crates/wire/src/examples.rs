//! Compares the examples in docs/PROTOCOL.md with the codec.

use zmove_types::TransferId;

use crate::{Extension, Extensions, Open, ToReceiver, encode_message, encode_ping, encode_pong};

/// Returns the bytes of each code block that contains hexadecimal bytes, without the explanatory lines.
fn examples() -> Vec<Vec<u8>> {
    let protocol = include_str!("../../../docs/PROTOCOL.md");
    let blocks = protocol.split("```").skip(1).step_by(2);
    let bytes = blocks.map(|block| block.lines().filter_map(bytes_of).flatten().collect());
    bytes.filter(|bytes: &Vec<u8>| !bytes.is_empty()).collect()
}

/// Parses a line of two-digit hexadecimal numbers. Returns `None` if the line contains other words.
fn bytes_of(line: &str) -> Option<Vec<u8>> {
    let mut bytes = Vec::new();
    for word in line.split_whitespace() {
        if word == "…" {
            // An ellipsis stands for the middle of a transfer ID. All its bytes equal the last byte before it.
            let middle = size_of::<TransferId>() - 2;
            bytes.extend(vec![*bytes.last()?; middle]);
        } else if word.len() == 2 {
            bytes.push(u8::from_str_radix(word, 16).ok()?);
        } else {
            return None;
        }
    }
    Some(bytes)
}

#[test]
fn the_examples_of_the_document_are_what_the_codec_makes() {
    let echo = [encode_ping(300), encode_pong(300)].concat();
    let open = Open::new(b"/d".to_vec(), [7; 16]);
    let opening = encode_message(&ToReceiver::Open(open.clone()));
    let extended = encode_message(&ToReceiver::Open(Open {
        extensions: Extensions(vec![Extension {
            number: 77,
            critical: true,
            value: b"z".to_vec(),
        }]),
        ..open
    }));
    // The block of extensions replaces the empty block, so the length at the beginning differs.
    let block = extended[opening.len() - 1..].to_vec();
    assert_eq!(examples(), [echo, opening, block]);
}
