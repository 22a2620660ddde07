//! The congestion controls of this host's kernel, and so how lanes can answer to loss.

use crate::control::link::{CongestionChoice, LossAnswer};

impl LossAnswer {
    /// The answer of connections of this host at first; with the congestion control that was `chosen` for them, there
    /// is no other one.
    #[must_use]
    pub fn of_host(chosen: Option<&str>) -> Self {
        let controls = congestion_controls();
        let used = chosen.or(controls.as_ref().map(|controls| controls.usual.as_str()));
        let tolerant = used.is_some_and(|name| name == LOSS_TOLERANT);
        let free = controls.filter(|controls| controls.tolerant && chosen.is_none() && !tolerant);
        let choice = free.map(|Controls { usual, .. }| CongestionChoice {
            usual,
            tolerant: LOSS_TOLERANT.to_owned(),
        });
        Self { tolerant, choice }
    }
}

/// The congestion control that does not take loss for a sign of a full path.
pub const LOSS_TOLERANT: &str = "bbr";

/// The TCP congestion controls that this host's kernel lets users choose.
#[derive(Debug, PartialEq, Eq)]
struct Controls {
    /// The congestion control that connections get by default.
    usual: String,
    /// Whether the congestion control [`LOSS_TOLERANT`] is available and allowed to users.
    tolerant: bool,
}

/// The congestion controls of this host, if the kernel reports them. A control that the administrator has not allowed
/// to users is not used, not even by root, and no kernel module is loaded.
fn congestion_controls() -> Option<Controls> {
    let read = |name: &str| std::fs::read_to_string(format!("/proc/sys/net/ipv4/{name}")).ok();
    let usual = read("tcp_congestion_control")?.trim().to_owned();
    let lists = [
        "tcp_available_congestion_control",
        "tcp_allowed_congestion_control",
    ]
    .map(read);
    let has = |list: &Option<String>| {
        list.as_ref()
            .is_some_and(|list| list.split_whitespace().any(|word| word == LOSS_TOLERANT))
    };
    Some(Controls {
        usual,
        tolerant: lists.iter().all(has),
    })
}
