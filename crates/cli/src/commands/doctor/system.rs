//! The machine: kernel, limits, CPU, clock.

use std::collections::BTreeSet;

use rustix::process::{Resource, getrlimit};
use zmove_disk::{RingConfig, Uring};
use zmove_types::ByteCount;

use crate::commands::doctor::finding::{Finding, Level, Mend};
use crate::commands::doctor::root::Root;

/// What is known of the machine.
#[derive(Clone, Debug)]
pub(crate) struct System {
    /// As `uname -r` shows it.
    pub(crate) kernel: Option<String>,
    /// Why io_uring does not run, if it does not.
    pub(crate) io_uring: Result<(), String>,
    /// `kernel.io_uring_disabled`.
    pub(crate) io_uring_disabled: Option<u64>,
    /// Limits that a process cannot raise by itself; zmove raises its own so far. `None`: there is no limit. In bytes.
    pub(crate) memlock: Option<u64>,
    pub(crate) open_files: Option<u64>,
    /// Whether the CPU has instructions for AES.
    pub(crate) aes: Option<bool>,
    /// Those of all cores, each once.
    pub(crate) governors: BTreeSet<String>,
    /// What tells that the clock is set by others.
    pub(crate) clock: Option<&'static str>,
}

impl System {
    pub(crate) fn gather(root: &Root) -> Self {
        let io_uring = Uring::start(RingConfig::default());
        Self {
            kernel: root.text("proc/sys/kernel/osrelease"),
            io_uring: io_uring.map(drop).map_err(|error| format!("{:#}", anyhow::Error::new(error))),
            io_uring_disabled: root.sysctl("kernel.io_uring_disabled"),
            memlock: getrlimit(Resource::Memlock).maximum,
            open_files: getrlimit(Resource::Nofile).maximum,
            aes: root.text("proc/cpuinfo").and_then(|text| has_aes(&text)),
            governors: governors(root),
            clock: CLOCK_SIGNS.iter().find(|(path, _)| root.path(path).exists()).map(|(_, sign)| *sign),
        }
    }

    pub(crate) fn judge(&self) -> Vec<Finding> {
        let mut findings = vec![self.judge_kernel(), self.judge_io_uring()];
        findings.extend(self.judge_memlock());
        findings.push(self.judge_open_files());
        findings.push(self.judge_aes());
        // virtual machines have none
        findings.extend((!self.governors.is_empty()).then(|| self.judge_governors()));
        findings.push(self.judge_clock());
        findings
    }

    fn judge_kernel(&self) -> Finding {
        let Some(kernel) = &self.kernel else {
            return Finding::unknown("kernel", "/proc/sys/kernel/osrelease");
        };
        match version(kernel) {
            Some(version) if version < SYNCFS_TELLS => Finding::note(
                "kernel",
                format!(
                    "{kernel}: before 5.8 the last flush does not tell of write-back that failed; receive with \
                     'push --durability file'"
                ),
            ),
            _ => Finding::ok("kernel", kernel),
        }
    }

    fn judge_io_uring(&self) -> Finding {
        let Err(reason) = &self.io_uring else { return Finding::ok("io_uring", "works") };
        let finding = Finding::note("io_uring", format!("{reason}; threads are used, with the same results"));
        match self.io_uring_disabled {
            Some(1 | 2) => finding.mended_by(Mend::sysctl("kernel.io_uring_disabled", "0")),
            _ => finding,
        }
    }

    /// Only where io_uring could run.
    fn judge_memlock(&self) -> Option<Finding> {
        self.io_uring.as_ref().ok()?;
        Some(match self.memlock {
            Some(bytes) if bytes < PINNED_BYTES => {
                let text = format!(
                    "{}, where '--io-engine uring' would pin {} of buffers and does without",
                    ByteCount(bytes),
                    ByteCount(PINNED_BYTES)
                );
                let kib = PINNED_BYTES >> 10;
                Finding::note("memlock", text)
                    .mended_by(Mend::line(LIMITS_FILE, format!("* hard memlock {kib}")))
            }
            Some(bytes) => Finding::ok("memlock", ByteCount(bytes).to_string()),
            None => Finding::ok("memlock", "no limit"),
        })
    }

    fn judge_open_files(&self) -> Finding {
        let Some(files) = self.open_files else { return Finding::ok("open files", "no limit") };
        let level = match files {
            0..FILES_MIN => Level::Slow,
            FILES_MIN..FILES_AMPLE => Level::Note,
            _ => return Finding::ok("open files", format!("up to {files}")),
        };
        let text = format!(
            "up to {files}: descriptors are held for directories, files and lanes, by a daemon for all its transfers"
        );
        Finding::new(level, "open files", text)
            .mended_by(Mend::line(LIMITS_FILE, format!("* hard nofile {FILES_WANTED}")))
    }

    fn judge_aes(&self) -> Finding {
        match self.aes {
            Some(true) => Finding::ok("AES", "by instructions of the CPU"),
            Some(false) => Finding::new(
                Level::Slow,
                "AES",
                "the CPU has no instructions for it: encryption costs several times as much CPU",
            ),
            None => Finding::unknown("AES", "/proc/cpuinfo"),
        }
    }

    fn judge_governors(&self) -> Finding {
        let names = Vec::from_iter(self.governors.iter().map(String::as_str)).join(", ");
        if !self.governors.contains("powersave") {
            return Finding::ok("CPU governor", names);
        }
        Finding::note("CPU governor", format!("{names}: clocks rise late or not at all"))
            .mended_by(Mend::command("cpupower frequency-set -g performance"))
    }

    fn judge_clock(&self) -> Finding {
        if let Some(sign) = self.clock {
            return Finding::ok("clock", sign);
        }
        let text = "nothing is known to set it; 'push --update', expiry dates and certificates go by it";
        Finding::note("clock", text).mended_by(Mend::command("timedatectl set-ntp true"))
    }
}

/// Major and minor number.
fn version(release: &str) -> Option<(u32, u32)> {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map(|digits| digits.parse().ok());
    Some((numbers.next()??, numbers.next()??))
}

/// From here on `syncfs` reports write-back that failed.
const SYNCFS_TELLS: (u32, u32) = (5, 8);
/// What the ring pins by default: 32 buffers of 4 MiB.
const PINNED_BYTES: u64 = 128 << 20;
const FILES_MIN: u64 = 1024;
const FILES_AMPLE: u64 = 4096;
const FILES_WANTED: u64 = 65_536;
const LIMITS_FILE: &str = "/etc/security/limits.d/90-zmove.conf";

fn governors(root: &Root) -> BTreeSet<String> {
    let cores = std::fs::read_dir(root.path("sys/devices/system/cpu")).ok().into_iter().flatten();
    let names = cores.filter_map(|core| core.ok()?.file_name().into_string().ok());
    let numbered =
        names.filter(|name| name.strip_prefix("cpu").is_some_and(|rest| rest.parse::<u32>().is_ok()));
    let governor = |core| root.text(&format!("sys/devices/system/cpu/{core}/cpufreq/scaling_governor"));
    numbered.filter_map(governor).collect()
}

/// Whether the flags of `/proc/cpuinfo`, by whichever name, have AES.
fn has_aes(cpuinfo: &str) -> Option<bool> {
    let lines = cpuinfo.lines().filter_map(|line| line.split_once(':'));
    let mut flags = lines.filter(|(name, _)| matches!(name.trim(), "flags" | "Features"));
    let (_, words) = flags.next()?;
    Some(words.split_whitespace().any(|word| word == "aes"))
}

/// What tells of the clock, the most telling first.
const CLOCK_SIGNS: [(&str, &str); 5] = [
    ("run/systemd/timesync/synchronized", "synchronized, says systemd-timesyncd"),
    ("run/chrony/chronyd.pid", "chronyd is running"),
    ("run/chronyd.pid", "chronyd is running"),
    ("run/ntpd.pid", "ntpd is running"),
    ("run/ntpsec/ntpd.pid", "ntpd is running"),
];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::doctor::root::tests::Fake;

    fn healthy() -> System {
        System {
            kernel: Some("6.18.44-fc".into()),
            io_uring: Ok(()),
            io_uring_disabled: Some(0),
            memlock: None,
            open_files: Some(1 << 20),
            aes: Some(true),
            governors: ["performance".to_owned()].into(),
            clock: Some("synchronized, says systemd-timesyncd"),
        }
    }

    /// The findings that are not ok, as level and check, and their mends.
    fn troubles(system: &System) -> Vec<(Level, &'static str, Option<Mend>)> {
        let findings = system.judge().into_iter().filter(|finding| finding.level != Level::Ok);
        findings.map(|finding| (finding.level, finding.check, finding.mend.into_iter().next())).collect()
    }

    #[test]
    fn a_healthy_machine_has_no_trouble() {
        assert_eq!(troubles(&healthy()), []);
    }

    #[test]
    fn each_trouble_shows() {
        let limits = |line: &str| Some(Mend::line(LIMITS_FILE, line));
        let refused = Err("io_uring_setup is refused".to_owned());
        let governors: BTreeSet<_> = ["performance".to_owned(), "powersave".to_owned()].into();
        let cases = [
            (System { kernel: Some("5.4.0-42-generic".into()), ..healthy() }, Level::Note, "kernel", None),
            (System { kernel: None, ..healthy() }, Level::Note, "kernel", None),
            (System { io_uring: refused.clone(), ..healthy() }, Level::Note, "io_uring", None),
            (
                System { io_uring: refused, io_uring_disabled: Some(2), ..healthy() },
                Level::Note,
                "io_uring",
                Some(Mend::sysctl("kernel.io_uring_disabled", "0")),
            ),
            (
                System { memlock: Some(8 << 20), ..healthy() },
                Level::Note,
                "memlock",
                limits("* hard memlock 131072"),
            ),
            (
                System { open_files: Some(1024), ..healthy() },
                Level::Note,
                "open files",
                limits("* hard nofile 65536"),
            ),
            (
                System { open_files: Some(256), ..healthy() },
                Level::Slow,
                "open files",
                limits("* hard nofile 65536"),
            ),
            (System { aes: Some(false), ..healthy() }, Level::Slow, "AES", None),
            (System { aes: None, ..healthy() }, Level::Note, "AES", None),
            (
                System { governors, ..healthy() },
                Level::Note,
                "CPU governor",
                Some(Mend::command("cpupower frequency-set -g performance")),
            ),
            (
                System { clock: None, ..healthy() },
                Level::Note,
                "clock",
                Some(Mend::command("timedatectl set-ntp true")),
            ),
        ];
        for (system, level, check, mend) in cases {
            assert_eq!(troubles(&system), [(level, check, mend)], "{system:?}");
        }
    }

    #[test]
    fn limits_of_io_uring_are_no_matter_without_it() {
        let memlock = Some(1);
        let system = System { io_uring: Err(String::new()), memlock, ..healthy() };
        assert!(troubles(&system).iter().all(|(_, check, _)| *check == "io_uring"));
    }

    #[test]
    fn facts_are_read_from_the_tree() {
        let fake = Fake::of(&[
            ("proc/sys/kernel/osrelease", "6.1.0"),
            ("proc/cpuinfo", "processor\t: 0\nflags\t\t: fpu sse2 aes avx"),
            ("sys/devices/system/cpu/cpu0/cpufreq/scaling_governor", "powersave"),
            ("sys/devices/system/cpu/cpu11/cpufreq/scaling_governor", "performance"),
            ("sys/devices/system/cpu/cpufreq/scaling_governor", "no core"),
            ("run/chrony/chronyd.pid", "7"),
        ]);
        let System { kernel, io_uring_disabled, aes, governors, clock, .. } = System::gather(&fake.root());
        assert_eq!((kernel.as_deref(), io_uring_disabled), (Some("6.1.0"), None));
        assert_eq!(governors, ["performance".to_owned(), "powersave".to_owned()].into());
        assert_eq!((aes, clock), (Some(true), Some("chronyd is running")));
    }

    #[test]
    fn an_empty_tree_is_unknown() {
        let fake = Fake::of(&[]);
        let System { kernel, aes, governors, clock, .. } = System::gather(&fake.root());
        assert_eq!((kernel, aes, governors, clock), (None, None, BTreeSet::new(), None));
    }

    #[test]
    fn flags_have_two_names() {
        assert_eq!(has_aes("Features\t: fp asimd aes pmull"), Some(true));
        assert_eq!(has_aes("flags\t: fpu vaes"), Some(false));
        assert_eq!(has_aes("model name : aes"), None);
    }
}
