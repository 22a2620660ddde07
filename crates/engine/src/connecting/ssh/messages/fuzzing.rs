//! The fuzz target for the messages over ssh's pipes, run by `crates/fuzz`.

use super::{ReceiveReply, ReceiveRequest};
use crate::connecting::settings::PortRange;

/// Parses a message of either side, and a range of ports. A message must be unchanged after it is written and parsed
/// again. A range must not be empty and must not contain port 0.
///
/// # Panics
/// Panics if a message or a range violates these properties.
pub fn ssh_words(bytes: &[u8]) {
    if let Ok(Some(ready)) = ReceiveReply::read(bytes) {
        let line = ready.line();
        assert_eq!(
            ReceiveReply::read(line.trim_start().as_bytes()).expect("it was just written"),
            Some(ready)
        );
    }
    let Ok(text) = std::str::from_utf8(bytes) else {
        return;
    };
    if let Ok(request) = ReceiveRequest::read(text) {
        let line = request.line();
        assert_eq!(
            ReceiveRequest::read(&line).expect("it was just written"),
            request
        );
    }
    if let Ok(range) = text.parse::<PortRange>() {
        assert!(!range.ports().is_empty() && !range.ports().contains(&0));
    }
}
