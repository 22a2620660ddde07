//! Checks the kernel's TCP settings: switches, congestion control and pacing.
//!
//! The kernel's `Documentation/networking/ip-sysctl.rst` describes each setting.

use crate::commands::doctor::finding::{Finding, PersistentLine, Remedy, Severity};
use crate::commands::doctor::root::Root;
use zmove_engine::LOSS_TOLERANT;

/// A sysctl that should be on or off.
#[derive(Debug)]
struct Switch {
    check: &'static str,
    /// Name of the sysctl below `net.ipv4`.
    name: &'static str,
    right: u64,
    level: Severity,
    otherwise: &'static str,
}

const SWITCHES: [Switch; 4] = [
    Switch {
        check: "window scaling",
        name: "tcp_window_scaling",
        right: 1,
        level: Severity::Slow,
        otherwise: "no lane can have more than 64 KiB in flight",
    },
    Switch {
        check: "SACK",
        name: "tcp_sack",
        right: 1,
        level: Severity::Slow,
        otherwise: "several losses in one round trip take several round trips to repair",
    },
    Switch {
        check: "receive tuning",
        name: "tcp_moderate_rcvbuf",
        right: 1,
        level: Severity::Slow,
        otherwise: "the receive window does not grow with the path",
    },
    Switch {
        check: "idle restart",
        name: "tcp_slow_start_after_idle",
        right: 0,
        level: Severity::Note,
        otherwise: "a lane that waited for storage restarts slowly",
    },
];

/// Checks the settings of this host. `mtu` is the MTU of the outgoing link.
pub(crate) fn judge(root: &Root, mtu: Option<u32>) -> Vec<Finding> {
    let mut findings: Vec<_> = SWITCHES.iter().map(|switch| switch.judge(root)).collect();
    findings.push(judge_mtu_probing(root, mtu));
    match root.sysctl::<String>(CONTROL) {
        Some(usual) => {
            findings.push(judge_congestion(root, &usual));
            findings.push(judge_queueing(root, &usual));
        }
        None => findings.push(Finding::unknown_sysctl(CONGESTION, CONTROL)),
    }
    findings
}

impl Switch {
    fn judge(&self, root: &Root) -> Finding {
        let Self {
            check,
            name,
            right,
            level,
            otherwise,
        } = self;
        let sysctl = format!("net.ipv4.{name}");
        match root.sysctl::<u64>(&sysctl) {
            None => Finding::unknown_sysctl(check, &sysctl),
            Some(value) if value == *right => Finding::ok(check, format!("{name} = {value}")),
            Some(value) => Finding::new(*level, check, format!("{name} = {value}: {otherwise}"))
                .with_remedy(Remedy::sysctl(&sysctl, &right.to_string())),
        }
    }
}

fn judge_mtu_probing(root: &Root, mtu: Option<u32>) -> Finding {
    let jumbo = mtu.is_some_and(|mtu| mtu > ETHERNET_MTU);
    match root.sysctl::<u64>(MTU_PROBING) {
        None => Finding::unknown_sysctl("MTU probing", MTU_PROBING),
        Some(0) if jumbo => Finding::note(
            "MTU probing",
            "off: if the path drops large packets without a report, a transfer over TCP needs a few seconds to detect \
             this, and then sends small packets",
        )
        .with_remedy(Remedy::sysctl(MTU_PROBING, "1")),
        Some(0) => Finding::ok("MTU probing", "off, and not needed for packets of this link"),
        Some(_) => Finding::ok("MTU probing", "on"),
    }
}

fn judge_queueing(root: &Root, usual: &str) -> Finding {
    match root.sysctl::<String>(QUEUEING).as_deref() {
        None => Finding::unknown_sysctl("queueing", QUEUEING),
        Some("fq") => Finding::ok("queueing", "fq"),
        Some(other) => {
            let who = if usual == LOSS_TOLERANT {
                "lanes"
            } else {
                "lanes with bbr"
            };
            let text = format!(
                "{other}: {who} are paced by TCP's own timers, which costs more CPU than fq (the change applies to \
                 links that come up later)"
            );
            Finding::note("queueing", text).with_remedy(Remedy::sysctl(QUEUEING, "fq"))
        }
    }
}

/// Checks the available congestion controls. `usual` is the default of new sockets.
fn judge_congestion(root: &Root, usual: &str) -> Finding {
    if usual == LOSS_TOLERANT {
        return Finding::ok(CONGESTION, usual);
    }
    let names = |sysctl| root.sysctl_words(sysctl).unwrap_or_default();
    let has = |names: &[String]| names.iter().any(|name| name == LOSS_TOLERANT);
    let mut allowed = names(ALLOWED);
    let is_loaded = has(&names(AVAILABLE));
    if is_loaded && has(&allowed) {
        return Finding::ok(
            CONGESTION,
            format!("{usual}; lanes slowed by loss switch to {LOSS_TOLERANT}"),
        );
    }
    let lacking = if is_loaded {
        "is available, but users may not choose it"
    } else {
        "is not loaded"
    };
    let mut finding = Finding::note(
        CONGESTION,
        format!("{usual}; {LOSS_TOLERANT} {lacking}, and loss slows lanes"),
    );
    if !is_loaded {
        let module = format!("tcp_{LOSS_TOLERANT}");
        let load = Remedy::command(format!("modprobe {module}"));
        finding = finding.with_remedy(Remedy {
            keep: Some(PersistentLine {
                file: MODULES_FILE,
                line: module,
            }),
            ..load
        });
    }
    allowed.push(LOSS_TOLERANT.to_owned());
    finding.with_remedy(Remedy::sysctl(ALLOWED, &allowed.join(" ")))
}

const MTU_PROBING: &str = "net.ipv4.tcp_mtu_probing";
const CONTROL: &str = "net.ipv4.tcp_congestion_control";
const AVAILABLE: &str = "net.ipv4.tcp_available_congestion_control";
const ALLOWED: &str = "net.ipv4.tcp_allowed_congestion_control";
const QUEUEING: &str = "net.core.default_qdisc";
const CONGESTION: &str = "congestion";
const MODULES_FILE: &str = "/etc/modules-load.d/90-zmove.conf";
pub(crate) const ETHERNET_MTU: u32 = 1500;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::doctor::root::tests::Fake;

    const HEALTHY: [(&str, &str); 9] = [
        ("net.ipv4.tcp_window_scaling", "1"),
        ("net.ipv4.tcp_sack", "1"),
        ("net.ipv4.tcp_moderate_rcvbuf", "1"),
        ("net.ipv4.tcp_slow_start_after_idle", "0"),
        (MTU_PROBING, "1"),
        (CONTROL, "bbr"),
        (AVAILABLE, "reno cubic bbr"),
        (ALLOWED, "reno cubic bbr"),
        (QUEUEING, "fq"),
    ];

    type Trouble = (Severity, &'static str, Vec<String>);

    /// Returns the level, check and commands of each finding that is not ok, on a kernel that is healthy except for
    /// these settings. A setting without a value is missing.
    fn troubles(settings: &[(&str, Option<&str>)], mtu: u32) -> Vec<Trouble> {
        let set = |name: &str| settings.iter().any(|(other, _)| *other == name);
        let mut sysctls: Vec<_> = HEALTHY.into_iter().filter(|(name, _)| !set(name)).collect();
        sysctls.extend(
            settings
                .iter()
                .filter_map(|(name, value)| Some((*name, (*value)?))),
        );
        let findings = judge(&Fake::of_sysctls(&sysctls).root(), Some(mtu)).into_iter();
        let runs = |found: Finding| found.mend.into_iter().filter_map(|mend| mend.run).collect();
        let findings = findings.filter(|finding| finding.level != Severity::Ok);
        findings
            .map(|found| (found.level, found.check, runs(found)))
            .collect()
    }

    #[test]
    fn a_healthy_kernel_has_no_trouble() {
        assert_eq!(troubles(&[], 9000), []);
        let cubic = [
            (CONTROL, Some("cubic")),
            (AVAILABLE, Some("cubic bbr")),
            (ALLOWED, Some("cubic bbr")),
        ];
        assert_eq!(troubles(&cubic, 9000), []);
        assert_eq!(troubles(&[(MTU_PROBING, Some("2"))], 9000), []);
    }

    #[test]
    fn each_switch_that_is_wrong_shows() {
        for switch in &SWITCHES {
            let name = format!("net.ipv4.{}", switch.name);
            let wrong = (1 - switch.right).to_string();
            let run = format!("sysctl -w {name}={}", switch.right);
            let check = switch.check;
            assert_eq!(
                troubles(&[(&name, Some(&wrong))], 9000),
                [(switch.level, check, vec![run])]
            );
            assert_eq!(
                troubles(&[(&name, None)], 9000),
                [(Severity::Note, check, vec![])]
            );
        }
    }

    #[test]
    fn probing_is_for_large_packets() {
        let off = [(MTU_PROBING, Some("0"))];
        let run = vec!["sysctl -w net.ipv4.tcp_mtu_probing=1".to_owned()];
        assert_eq!(troubles(&off, 9000), [(Severity::Note, "MTU probing", run)]);
        assert_eq!(troubles(&off, 1500), []);
    }

    #[test]
    fn bbr_is_loaded_and_allowed_where_it_is_not() {
        let allow =
            "sysctl -w net.ipv4.tcp_allowed_congestion_control=\"reno cubic bbr\"".to_owned();
        let cases = [
            ("reno cubic bbr", vec![allow.clone()]),
            ("reno cubic", vec!["modprobe tcp_bbr".to_owned(), allow]),
        ];
        for (available, runs) in cases {
            let cubic = [
                (CONTROL, Some("cubic")),
                (AVAILABLE, Some(available)),
                (ALLOWED, Some("reno cubic")),
            ];
            assert_eq!(
                troubles(&cubic, 9000),
                [(Severity::Note, "congestion", runs)]
            );
        }
        assert_eq!(
            troubles(&[(CONTROL, None)], 9000),
            [(Severity::Note, "congestion", vec![])]
        );
    }

    #[test]
    fn pacing_wants_fq() {
        let run = vec!["sysctl -w net.core.default_qdisc=fq".to_owned()];
        let other = [(QUEUEING, Some("pfifo_fast"))];
        assert_eq!(troubles(&other, 9000), [(Severity::Note, "queueing", run)]);
    }

    #[test]
    fn what_cannot_be_read_is_unknown() {
        let findings = judge(&Fake::of(&[]).root(), None);
        assert!(findings.iter().all(|finding| {
            finding
                .text
                .starts_with("unknown: '/proc/sys/net/ipv4/tcp_")
        }));
        assert_eq!(findings.len(), SWITCHES.len() + 2);
    }
}
