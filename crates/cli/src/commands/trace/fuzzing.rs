//! Traces for `crates/fuzz`.

use super::picture;
use super::read::read;
use super::{panels, table};
use crate::display::trace::Line;
use zmove_drawing::Heading;

/// A whole trace: it is read, summed up and drawn, and its lines mean the same when they are written again.
///
/// # Panics
/// When they do not.
pub fn trace(bytes: &[u8]) {
    let lines = match read(bytes) {
        Ok(lines) => lines,
        Err(error) => return drop(format!("{error:#}")),
    };
    let written =
        |line: &Line| [serde_json::to_vec(line).expect("numbers can be written"), b"\n".into()].concat();
    let again = read(&lines.iter().flat_map(written).collect::<Vec<_>>()[..]).expect("it was just written");
    assert_eq!(again, lines);
    assert!(!table::summary(&lines).is_empty());
    let (title, below) = table::heading(&lines);
    let seconds = lines.last().map_or(0.0, |line| line.seconds);
    assert!(!picture::draw(&Heading { title, below }, &panels::panels(&lines), seconds).is_empty());
}
