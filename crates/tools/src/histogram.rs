//! The histogram of a tree as text and as a picture, and what follows from it.

mod advice;
mod picture;
mod table;

pub use advice::{ReadTime, advice};
pub use picture::picture;
pub use table::table;
