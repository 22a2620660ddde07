//! Measurements of speed: zmove and its peers over paths, data and storages.

pub(crate) mod compare;
pub(crate) mod late;
pub(crate) mod matrix;
pub(crate) mod measure;
pub(crate) mod paper;
pub(crate) mod peers;
pub(crate) mod scale;
