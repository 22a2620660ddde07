//! Performance measurements of zmove and comparable tools over paths, data sets and storage.

pub(crate) mod compare;
pub(crate) mod late;
pub(crate) mod matrix;
pub(crate) mod measure;
pub(crate) mod paper;
pub(crate) mod peers;
pub(crate) mod scale;
