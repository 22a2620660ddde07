//! The histogram of a file tree as text and as a chart, and advice based on it.

mod advice;
mod picture;
mod table;

pub use advice::{ReadTime, advice};
pub use picture::picture;
pub use table::table;
