//! The sources of a scan: their specification, and the names that they contain.

pub(crate) mod name_glob;
pub(crate) mod path_list;
pub(crate) mod shared_parents;
pub(crate) mod source_names;
pub(crate) mod walk_record;
