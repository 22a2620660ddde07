//! The plan of a push, which turns the entries of the scan that the target needs into packs and groups.

pub(crate) mod asked;
pub(crate) mod gathered;
pub(crate) mod guess;
pub(crate) mod links;
pub(crate) mod pack;
pub(crate) mod planner;
pub(crate) mod queue;
pub(crate) mod requests;
pub(crate) mod resend;
