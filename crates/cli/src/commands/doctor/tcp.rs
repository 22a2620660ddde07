//! The kernel's TCP: its switches, congestion control and pacing.
//!
//! What each setting does is said in the kernel's `Documentation/networking/ip-sysctl.rst`.

use crate::commands::doctor::finding::{Finding, Level, Mend};
use crate::commands::doctor::root::Root;
use zmove_engine::LOSS_TOLERANT;

/// What is known of the kernel's TCP.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Tcp {
    /// The values of [`SWITCHES`], in their order.
    pub(crate) switches: [Option<u64>; SWITCHES.len()],
    pub(crate) memory: Memory,
    pub(crate) mtu_probing: Option<u64>,
    pub(crate) congestion: Option<Congestion>,
    /// `net.core.default_qdisc`.
    pub(crate) queueing: Option<String>,
}

/// What the kernel keeps of a connection for later ones to the same host. Most of it helps; the threshold of slow start, which
/// loss has set, is what a later connection then stops at.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Memory {
    /// `tcp_no_metrics_save`.
    pub(crate) nothing: Option<u64>,
    /// `tcp_no_ssthresh_metrics_save`; old kernels do not have it, and keep the threshold.
    pub(crate) no_threshold: Option<u64>,
}

/// Which congestion controls there are.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Congestion {
    pub(crate) usual: String,
    pub(crate) available: Vec<String>,
    /// To users.
    pub(crate) allowed: Vec<String>,
}

/// A sysctl that should be on, or off.
#[derive(Debug)]
pub(crate) struct Switch {
    check: &'static str,
    name: &'static str,
    right: u64,
    level: Level,
    otherwise: &'static str,
}

/// The switches.
pub(crate) const SWITCHES: [Switch; 4] = [
    Switch {
        check: "window scaling",
        name: "tcp_window_scaling",
        right: 1,
        level: Level::Slow,
        otherwise: "no lane can have more than 64 KiB under way",
    },
    Switch {
        check: "SACK",
        name: "tcp_sack",
        right: 1,
        level: Level::Slow,
        otherwise: "several losses in one round trip take several to mend",
    },
    Switch {
        check: "receive tuning",
        name: "tcp_moderate_rcvbuf",
        right: 1,
        level: Level::Slow,
        otherwise: "the receive window does not grow with the path",
    },
    Switch {
        check: "idle restart",
        name: "tcp_slow_start_after_idle",
        right: 0,
        level: Level::Note,
        otherwise: "a lane that had to wait for storage begins slowly again",
    },
];

impl Tcp {
    pub(crate) fn gather(root: &Root) -> Self {
        let switches = SWITCHES.map(|switch| root.sysctl(&full_name(switch.name)));
        let queueing = root.text("proc/sys/net/core/default_qdisc");
        Self {
            switches,
            memory: Memory {
                nothing: root.sysctl(NOTHING_KEPT),
                no_threshold: root.sysctl(NO_THRESHOLD_KEPT),
            },
            mtu_probing: root.sysctl(MTU_PROBING),
            congestion: Congestion::gather(root),
            queueing,
        }
    }

    /// `mtu` is that of the outgoing link.
    pub(crate) fn judge(&self, mtu: Option<u32>) -> Vec<Finding> {
        let mut findings: Vec<_> =
            SWITCHES.iter().zip(self.switches).map(|(switch, value)| switch.judge(value)).collect();
        findings.push(self.memory.judge());
        findings.push(self.judge_mtu_probing(mtu));
        match &self.congestion {
            Some(congestion) => {
                findings.push(congestion.judge());
                findings.push(self.judge_queueing(congestion));
            }
            None => {
                findings.push(Finding::unknown(CONGESTION, "/proc/sys/net/ipv4/tcp_congestion_control"));
            }
        }
        findings
    }

    fn judge_mtu_probing(&self, mtu: Option<u32>) -> Finding {
        let jumbo = mtu.is_some_and(|mtu| mtu > ETHERNET_MTU);
        match self.mtu_probing {
            None => Finding::unknown("MTU probing", "/proc/sys/net/ipv4/tcp_mtu_probing"),
            Some(0) if jumbo => Finding::note(
                "MTU probing",
                "off: with large packets a lane stands still where something on the path drops them and no word of it \
                 comes back",
            )
            .mended_by(Mend::sysctl(MTU_PROBING, "1")),
            Some(0) => Finding::ok("MTU probing", "off, and not needed for packets of this link"),
            Some(_) => Finding::ok("MTU probing", "on"),
        }
    }

    fn judge_queueing(&self, congestion: &Congestion) -> Finding {
        match self.queueing.as_deref() {
            None => Finding::unknown("queueing", "/proc/sys/net/core/default_qdisc"),
            Some("fq") => Finding::ok("queueing", "fq"),
            Some(other) => {
                let who =
                    if congestion.usual == LOSS_TOLERANT { "lanes" } else { "lanes with bbr or a limit" };
                let text = format!(
                    "{other}: {who} are paced by TCP's own timers, at more CPU than by fq (which counts for links that come \
                     up after the change)"
                );
                Finding::note("queueing", text).mended_by(Mend::sysctl("net.core.default_qdisc", "fq"))
            }
        }
    }
}

impl Switch {
    fn judge(&self, value: Option<u64>) -> Finding {
        let Self { check, name, right, level, otherwise } = self;
        match value {
            None => Finding::unknown(check, &format!("/proc/sys/net/ipv4/{name}")),
            Some(value) if value == *right => Finding::ok(check, format!("{name} = {value}")),
            Some(value) => Finding::new(*level, check, format!("{name} = {value}: {otherwise}"))
                .mended_by(Mend::sysctl(&full_name(name), &right.to_string())),
        }
    }
}

impl Memory {
    fn judge(self) -> Finding {
        let held_back = |name| {
            Finding::note(
                "path memory",
                "where one connection has met loss, later ones to that host are slow sooner",
            )
            .mended_by(Mend::sysctl(name, "1"))
        };
        match (self.nothing, self.no_threshold) {
            (Some(1..), _) => Finding::ok("path memory", "none (tcp_no_metrics_save)"),
            (_, Some(1..)) => Finding::ok("path memory", "without the threshold of slow start"),
            (Some(0), Some(0)) => held_back(NO_THRESHOLD_KEPT),
            (Some(0), None) => held_back(NOTHING_KEPT),
            (None, _) => Finding::unknown("path memory", "/proc/sys/net/ipv4/tcp_no_metrics_save"),
        }
    }
}

impl Congestion {
    fn gather(root: &Root) -> Option<Self> {
        let words = |name: &str| root.sysctl_words(&full_name(name));
        Some(Self {
            usual: words("tcp_congestion_control")?.into_iter().next()?,
            available: words("tcp_available_congestion_control").unwrap_or_default(),
            allowed: words("tcp_allowed_congestion_control").unwrap_or_default(),
        })
    }

    fn judge(&self) -> Finding {
        let has = |list: &[String]| list.iter().any(|name| name == LOSS_TOLERANT);
        let usual = &self.usual;
        if usual == LOSS_TOLERANT {
            return Finding::ok(CONGESTION, usual);
        }
        match (has(&self.available), has(&self.allowed)) {
            (true, true) => {
                Finding::ok(CONGESTION, format!("{usual}; lanes that loss slows go over to {LOSS_TOLERANT}"))
            }
            (true, false) => Finding::note(
                CONGESTION,
                format!(
                    "{usual}; {LOSS_TOLERANT} is there, but users may not choose it, and loss slows lanes"
                ),
            )
            .mended_by(self.allow()),
            (false, _) => {
                let module = Mend::command(format!("modprobe tcp_{LOSS_TOLERANT}"));
                let kept = Mend::line(MODULES_FILE, format!("tcp_{LOSS_TOLERANT}"));
                Finding::note(
                    CONGESTION,
                    format!("{usual}; {LOSS_TOLERANT} is not loaded, and loss slows lanes"),
                )
                .mended_by(Mend { keep: kept.keep, ..module })
                .mended_by(self.allow())
            }
        }
    }

    fn allow(&self) -> Mend {
        let allowed = self.allowed.iter().map(String::as_str).chain([LOSS_TOLERANT]);
        let names: Vec<_> = allowed.collect();
        Mend::sysctl("net.ipv4.tcp_allowed_congestion_control", &names.join(" "))
    }
}

fn full_name(name: &str) -> String {
    format!("net.ipv4.{name}")
}

const NOTHING_KEPT: &str = "net.ipv4.tcp_no_metrics_save";
const NO_THRESHOLD_KEPT: &str = "net.ipv4.tcp_no_ssthresh_metrics_save";
const MTU_PROBING: &str = "net.ipv4.tcp_mtu_probing";
const CONGESTION: &str = "congestion";
const MODULES_FILE: &str = "/etc/modules-load.d/90-zmove.conf";
pub(crate) const ETHERNET_MTU: u32 = 1500;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::doctor::root::fake::Fake;

    fn names(text: &str) -> Vec<String> {
        text.split(' ').map(str::to_owned).collect()
    }

    fn congestion(usual: &str, available: &str, allowed: &str) -> Option<Congestion> {
        Some(Congestion { usual: usual.into(), available: names(available), allowed: names(allowed) })
    }

    fn healthy() -> Tcp {
        Tcp {
            switches: [Some(1), Some(1), Some(1), Some(0)],
            memory: Memory { nothing: Some(0), no_threshold: Some(1) },
            mtu_probing: Some(1),
            congestion: congestion("bbr", "reno cubic bbr", "reno cubic bbr"),
            queueing: Some("fq".into()),
        }
    }

    /// The findings that are not ok: level, check, commands.
    fn troubles(tcp: &Tcp, mtu: u32) -> Vec<(Level, &'static str, Vec<String>)> {
        let findings = tcp.judge(Some(mtu)).into_iter().filter(|finding| finding.level != Level::Ok);
        findings
            .map(|found| {
                (found.level, found.check, found.mend.into_iter().filter_map(|mend| mend.run).collect())
            })
            .collect()
    }

    #[test]
    fn a_healthy_kernel_has_no_trouble() {
        assert_eq!(troubles(&healthy(), 9000), []);
        let cubic = Tcp { congestion: congestion("cubic", "cubic bbr", "cubic bbr"), ..healthy() };
        assert_eq!(troubles(&cubic, 9000), []);
    }

    #[test]
    fn each_switch_that_is_wrong_shows() {
        for (at, switch) in SWITCHES.iter().enumerate() {
            let mut tcp = healthy();
            tcp.switches[at] = Some(1 - switch.right);
            let run = format!("sysctl -w net.ipv4.{}={}", switch.name, switch.right);
            let check = switch.check;
            assert_eq!(troubles(&tcp, 9000), [(switch.level, check, vec![run])]);
            tcp.switches[at] = None;
            assert_eq!(troubles(&tcp, 9000), [(Level::Note, check, vec![])]);
        }
    }

    #[test]
    fn of_what_is_kept_only_the_threshold_is_bad() {
        let with = |nothing, no_threshold| {
            troubles(&Tcp { memory: Memory { nothing, no_threshold }, ..healthy() }, 9000)
        };
        let note = |name: &str| vec![(Level::Note, "path memory", vec![format!("sysctl -w {name}=1")])];
        assert_eq!(with(Some(1), None), []);
        assert_eq!(with(Some(1), Some(0)), []);
        assert_eq!(with(Some(0), Some(0)), note(NO_THRESHOLD_KEPT));
        assert_eq!(with(Some(0), None), note(NOTHING_KEPT));
        assert_eq!(with(None, None), [(Level::Note, "path memory", vec![])]);
    }

    #[test]
    fn probing_is_for_large_packets() {
        let off = Tcp { mtu_probing: Some(0), ..healthy() };
        let run = vec!["sysctl -w net.ipv4.tcp_mtu_probing=1".to_owned()];
        assert_eq!(troubles(&off, 9000), [(Level::Note, "MTU probing", run)]);
        assert_eq!(troubles(&off, 1500), []);
    }

    #[test]
    fn bbr_is_loaded_and_allowed_where_it_is_not() {
        let allow = "sysctl -w net.ipv4.tcp_allowed_congestion_control=\"reno cubic bbr\"".to_owned();
        let cases = [
            (congestion("cubic", "reno cubic bbr", "reno cubic"), vec![allow.clone()]),
            (congestion("cubic", "reno cubic", "reno cubic"), vec!["modprobe tcp_bbr".to_owned(), allow]),
        ];
        for (congestion, runs) in cases {
            let tcp = Tcp { congestion, ..healthy() };
            assert_eq!(troubles(&tcp, 9000), [(Level::Note, "congestion", runs)]);
        }
        let unknown = Tcp { congestion: None, ..healthy() };
        assert_eq!(troubles(&unknown, 9000), [(Level::Note, "congestion", vec![])]);
    }

    #[test]
    fn pacing_wants_fq() {
        let other = Tcp { queueing: Some("pfifo_fast".into()), ..healthy() };
        let run = vec!["sysctl -w net.core.default_qdisc=fq".to_owned()];
        assert_eq!(troubles(&other, 9000), [(Level::Note, "queueing", run)]);
    }

    #[test]
    fn facts_are_read_from_the_tree() {
        let fake = Fake::of_sysctls(&[
            ("net.ipv4.tcp_window_scaling", "1"),
            ("net.ipv4.tcp_no_metrics_save", "0"),
            ("net.ipv4.tcp_mtu_probing", "2"),
            ("net.ipv4.tcp_congestion_control", "cubic"),
            ("net.ipv4.tcp_available_congestion_control", "reno cubic"),
            ("net.ipv4.tcp_allowed_congestion_control", "reno cubic"),
            ("net.core.default_qdisc", "fq_codel"),
        ]);
        let expected = Tcp {
            switches: [Some(1), None, None, None],
            memory: Memory { nothing: Some(0), no_threshold: None },
            mtu_probing: Some(2),
            congestion: congestion("cubic", "reno cubic", "reno cubic"),
            queueing: Some("fq_codel".into()),
        };
        assert_eq!(Tcp::gather(&fake.root()), expected);
        assert_eq!(Tcp::gather(&Fake::of(&[]).root()), Tcp::default());
    }
}
