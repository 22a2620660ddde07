//! What is said over ssh's pipes, for `crates/fuzz`.

use super::{Order, Ready};
use crate::settings::PortRange;

/// A line to either side, and a range of ports: what is understood is said again in the same words.
///
/// # Panics
/// When it is not.
pub fn ssh_words(bytes: &[u8]) {
    if let Ok(Some(ready)) = Ready::read(bytes) {
        let line = ready.line();
        assert_eq!(Ready::read(line.trim_start().as_bytes()).expect("it was just written"), Some(ready));
    }
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    if let Ok(order) = Order::read(text) {
        let line = order.line();
        assert_eq!(Order::read(&line).expect("it was just written"), order);
    }
    if let Ok(range) = text.parse::<PortRange>() {
        assert!(!range.ports().is_empty() && !range.ports().contains(&0));
    }
}
