//! The congestion controls of this host's kernel, which determine how lanes can react to loss.

use crate::control::link::LossReaction;

impl LossReaction {
    /// Returns the initial reaction of this host's connections to loss. If a congestion control was `chosen` for the
    /// connections, it is never replaced. A congestion control is used only if the administrator allows it for ordinary
    /// users, even if this process runs as root. No kernel module is loaded.
    #[must_use]
    pub fn of_host(chosen: Option<&str>) -> Self {
        let read = |name: &str| std::fs::read_to_string(format!("/proc/sys/net/ipv4/{name}")).ok();
        let usual = read("tcp_congestion_control").map(|name| name.trim().to_owned());
        let tolerant = chosen.or(usual.as_deref()) == Some(LOSS_TOLERANT);
        let is_listed = |list: &str| {
            read(list).is_some_and(|list| list.split_whitespace().any(|name| name == LOSS_TOLERANT))
        };
        let may_be_replaced = chosen.is_none()
            && !tolerant
            && is_listed("tcp_available_congestion_control")
            && is_listed("tcp_allowed_congestion_control");
        Self {
            tolerant,
            usual: usual.filter(|_| may_be_replaced),
        }
    }
}

/// Kernel name of the congestion control that does not interpret loss as congestion.
pub const LOSS_TOLERANT: &str = "bbr";
