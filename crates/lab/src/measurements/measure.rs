//! A single measurement: the path itself, a run of one tool, and its figures.

pub(crate) mod again;
pub(crate) mod calibrate;
pub(crate) mod figures;
pub(crate) mod first_byte;
pub(crate) mod race;
pub(crate) mod report;
