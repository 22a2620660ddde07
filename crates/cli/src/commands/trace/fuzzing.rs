//! The fuzz target for traces; `crates/fuzz` runs it.

use super::picture;
use super::read::read;
use super::{panels, table};
use crate::display::trace::Line;
use zmove_tools::drawing::Heading;

/// Reads, summarises and draws a whole trace, and checks that its lines keep their meaning when written
/// again.
///
/// # Panics
/// When a line that is written and read again differs.
pub fn trace(bytes: &[u8]) {
    let (lines, about) = match read(bytes) {
        Ok(read) => read,
        Err(error) => return drop(format!("{error:#}")),
    };
    let written = |line: &Line| {
        [
            serde_json::to_vec(line).expect("numbers can be written"),
            b"\n".into(),
        ]
        .concat()
    };
    let (again, _) =
        read(&lines.iter().flat_map(written).collect::<Vec<_>>()[..]).expect("it was just written");
    assert_eq!(again, lines);
    assert!(!table::summary(&lines, &about).is_empty());
    let (title, below) = table::heading(&lines, &about);
    let seconds = lines.last().map_or(0.0, |line| line.seconds);
    assert!(!picture::draw(&Heading { title, below }, &panels::panels(&lines), seconds).is_empty());
}
