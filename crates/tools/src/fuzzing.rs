//! The fuzz target of this crate; `crates/fuzz` runs it.

use crate::trace::Trace;

/// Reads, sums up and draws a whole trace, and checks that its lines keep their meaning when they are written
/// again.
///
/// # Panics
/// When a line that is written and read again differs.
pub fn trace(bytes: &[u8]) {
    let trace = match Trace::read(bytes) {
        Ok(trace) => trace,
        Err(error) => return drop(error.to_string()),
    };
    let mut written = Vec::new();
    for line in &trace.lines {
        serde_json::to_writer(&mut written, line).expect("numbers can be written");
        written.push(b'\n');
    }
    let again = Trace::read(&written[..]).expect("it was just written");
    assert_eq!(again.lines, trace.lines);
    assert!(!trace.summary().is_empty());
    assert!(!trace.picture().is_empty());
}
