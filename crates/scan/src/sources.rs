//! The sources of a scan as they are named, and the names that are found in them.

pub(crate) mod first_walk;
pub(crate) mod name_glob;
pub(crate) mod path_list;
pub(crate) mod shared_parents;
pub(crate) mod source_names;
