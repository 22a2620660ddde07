//! The plan of what is sent: the entries of the scan become packs and groups, as far as the target needs them.

pub(crate) mod asked;
pub(crate) mod gathered;
pub(crate) mod guess;
pub(crate) mod links;
pub(crate) mod pack;
pub(crate) mod planner;
pub(crate) mod queue;
pub(crate) mod requests;
pub(crate) mod resend;
