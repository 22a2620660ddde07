//! Notifications: a command hook and a webhook receive the ends, stalls and late starts of jobs, each at least once.
//!
//! `notify.toml` configures both. The store has a notification for each event and [`NotifyMethod`], written in the
//! transaction that changes the job. For each method, a thread of the runner's [`Notifier`] sends the notifications and
//! records the results. If the runner is killed before it has recorded a result, the event is sent again with the same
//! id.
//!
//! **Invariant:** notifications never delay a job: each method has its own thread, and each attempt has a timeout.

mod config;
mod event;
mod hook;
mod notifier;
mod secret;
mod webhook;

pub use config::{NotifyConfig, NotifyError};
pub(crate) use notifier::Notifier;
