//! The fuzz target for the messages over ssh's pipes; `crates/fuzz` runs it.

use super::{ReceiveReply, ReceiveRequest};
use crate::connecting::settings::PortRange;

/// Reads a line of either side, which must read the same once it is written again, and a range of ports, which must
/// hold ports, none of them 0.
///
/// # Panics
/// When a line or a range does not.
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
