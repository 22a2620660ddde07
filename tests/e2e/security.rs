//! Hostile clients, peers and local users, and the permissions of keys.

pub(crate) mod authority;
pub(crate) mod confine;
pub(crate) mod deceiver;
pub(crate) mod forged;
pub(crate) mod grants;
pub(crate) mod greed;
pub(crate) mod hostile;
pub(crate) mod identities;
pub(crate) mod intruder;
pub(crate) mod privileges;
pub(crate) mod root;
pub(crate) mod roots;
pub(crate) mod tamper;
pub(crate) mod trust;
