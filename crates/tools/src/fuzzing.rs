//! The fuzz target of this crate, which `crates/fuzz` runs.

use crate::trace::Trace;

/// Reads, summarizes and draws a trace. Each line must be unchanged after it is written and read again.
///
/// # Panics
/// Panics if a line differs after it was written and read again.
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
