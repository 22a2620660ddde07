//! Checks the machine: kernel, limits, CPU and clock.

use anyhow::Result;
use rustix::process::{Resource, getrlimit};
use zmove_disk::{Ring, RingConfig};

use crate::commands::doctor::finding::{Finding, Remedy, Severity};
use crate::commands::doctor::root::Root;

/// Checks this host.
pub(crate) fn judge(root: &Root) -> Vec<Finding> {
    let io_uring = Ring::start(RingConfig::default());
    vec![
        judge_kernel(root),
        judge_io_uring(root, io_uring.map(drop).map_err(anyhow::Error::new)),
        judge_open_files(getrlimit(Resource::Nofile).maximum),
        judge_aes(root),
        judge_clock(root),
    ]
}

fn judge_kernel(root: &Root) -> Finding {
    let Some(kernel) = root.text("proc/sys/kernel/osrelease") else {
        return Finding::unknown("kernel", "/proc/sys/kernel/osrelease");
    };
    match version(&kernel) {
        Some(version) if version < SYNCFS_REPORTS_ERRORS => Finding::note(
            "kernel",
            format!(
                "{kernel}: before 5.8, the last flush does not report failed write-back; use 'push --durability file'"
            ),
        ),
        _ => Finding::ok("kernel", kernel),
    }
}

fn judge_io_uring(root: &Root, started: Result<()>) -> Finding {
    let Err(reason) = started else {
        return Finding::ok("io_uring", "works");
    };
    let finding = Finding::note(
        "io_uring",
        format!("{reason:#}; threads are used, with the same results"),
    );
    match root.sysctl(IO_URING_DISABLED) {
        Some(1 | 2) => finding.with_remedy(Remedy::sysctl(IO_URING_DISABLED, "0")),
        _ => finding,
    }
}

/// Checks the hard limit on open files. zmove raises its soft limit to this value. `None` means no limit.
fn judge_open_files(limit: Option<u64>) -> Finding {
    let Some(files) = limit else {
        return Finding::ok("open files", "no limit");
    };
    let level = match files {
        0..FILES_MIN => Severity::Slow,
        FILES_MIN..FILES_AMPLE => Severity::Note,
        _ => return Finding::ok("open files", format!("up to {files}")),
    };
    let text = format!(
        "up to {files}: directories, files and lanes need descriptors, in a daemon for all its transfers"
    );
    Finding::new(level, "open files", text).with_remedy(Remedy::line(
        LIMITS_FILE,
        format!("* hard nofile {FILES_WANTED}"),
    ))
}

fn judge_aes(root: &Root) -> Finding {
    match root.text("proc/cpuinfo").and_then(|text| has_aes(&text)) {
        Some(true) => Finding::ok("AES", "by CPU instructions"),
        Some(false) => Finding::new(
            Severity::Slow,
            "AES",
            "the CPU has no AES instructions: encryption costs several times as much CPU",
        ),
        None => Finding::unknown("AES", "/proc/cpuinfo"),
    }
}

fn judge_clock(root: &Root) -> Finding {
    if let Some((_, sign)) = CLOCK_SIGNS
        .iter()
        .find(|(path, _)| root.path(path).exists())
    {
        return Finding::ok("clock", *sign);
    }
    let text = "no time synchronization found; 'push --update', expiry dates and certificates depend on the clock";
    Finding::note("clock", text).with_remedy(Remedy::command("timedatectl set-ntp true"))
}

/// Returns the major and minor number of a kernel release.
fn version(release: &str) -> Option<(u32, u32)> {
    let mut numbers = release
        .split(|c: char| !c.is_ascii_digit())
        .map(|digits| digits.parse().ok());
    Some((numbers.next()??, numbers.next()??))
}

/// The first kernel version in which `syncfs` reports failed write-back.
const SYNCFS_REPORTS_ERRORS: (u32, u32) = (5, 8);
const IO_URING_DISABLED: &str = "kernel.io_uring_disabled";
const FILES_MIN: u64 = 1024;
const FILES_AMPLE: u64 = 4096;
const FILES_WANTED: u64 = 65_536;
const LIMITS_FILE: &str = "/etc/security/limits.d/90-zmove.conf";

/// Returns whether the CPU flags in `/proc/cpuinfo` include AES. Returns `None` if the file lists no flags.
fn has_aes(cpuinfo: &str) -> Option<bool> {
    let lines = cpuinfo.lines().filter_map(|line| line.split_once(':'));
    let mut flags = lines.filter(|(name, _)| matches!(name.trim(), "flags" | "Features"));
    let (_, words) = flags.next()?;
    Some(words.split_whitespace().any(|word| word == "aes"))
}

/// Files that show that a service sets the clock, the most reliable first.
const CLOCK_SIGNS: [(&str, &str); 5] = [
    (
        "run/systemd/timesync/synchronized",
        "synchronized, says systemd-timesyncd",
    ),
    ("run/chrony/chronyd.pid", "chronyd is running"),
    ("run/chronyd.pid", "chronyd is running"),
    ("run/ntpd.pid", "ntpd is running"),
    ("run/ntpsec/ntpd.pid", "ntpd is running"),
];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::doctor::root::tests::Fake;

    const HEALTHY: [(&str, &str); 3] = [
        ("proc/sys/kernel/osrelease", "6.18.44-fc"),
        (
            "proc/cpuinfo",
            "processor\t: 0\nflags\t\t: fpu sse2 aes avx",
        ),
        ("run/systemd/timesync/synchronized", ""),
    ];

    /// Returns the finding of a check on a machine that is healthy except for this file.
    fn with(path: &str, text: &str, judge: fn(&Root) -> Finding) -> Finding {
        let fake = Fake::of(&HEALTHY);
        fake.put(path, text);
        judge(&fake.root())
    }

    #[test]
    fn a_healthy_machine_has_no_trouble() {
        let root = Fake::of(&HEALTHY);
        let findings = [judge_kernel, judge_aes, judge_clock].map(|judge| judge(&root.root()));
        assert_eq!(findings.map(|finding| finding.level), [Severity::Ok; 3]);
        assert_eq!(judge_io_uring(&root.root(), Ok(())).level, Severity::Ok);
        assert_eq!(
            [None, Some(1 << 20)].map(|limit| judge_open_files(limit).level),
            [Severity::Ok; 2]
        );
    }

    #[test]
    fn an_empty_tree_is_unknown() {
        let root = Fake::of(&[]).root();
        let findings = [judge_kernel, judge_aes, judge_clock].map(|judge| judge(&root));
        assert_eq!(
            findings.each_ref().map(|finding| finding.level),
            [Severity::Note; 3]
        );
        assert!(
            findings[..2]
                .iter()
                .all(|finding| finding.text.starts_with("unknown: "))
        );
        assert_eq!(
            findings[2].mend,
            [Remedy::command("timedatectl set-ntp true")]
        );
    }

    #[test]
    fn an_old_kernel_is_a_note() {
        let old = with(
            "proc/sys/kernel/osrelease",
            "5.4.0-42-generic",
            judge_kernel,
        );
        assert_eq!((old.level, old.mend), (Severity::Note, vec![]));
        let known = with("proc/sys/kernel/osrelease", "6.1.0", judge_kernel);
        assert_eq!((known.level, known.text.as_str()), (Severity::Ok, "6.1.0"));
    }

    #[test]
    fn io_uring_is_allowed_where_a_sysctl_has_it_off() {
        let refused = || Err(anyhow::Error::msg("io_uring_setup is refused"));
        let other = judge_io_uring(&Fake::of(&[]).root(), refused());
        assert_eq!((other.level, other.mend), (Severity::Note, vec![]));
        let off = judge_io_uring(
            &Fake::of_sysctls(&[(IO_URING_DISABLED, "2")]).root(),
            refused(),
        );
        assert_eq!(
            (off.level, off.mend),
            (Severity::Note, vec![Remedy::sysctl(IO_URING_DISABLED, "0")])
        );
    }

    #[test]
    fn few_open_files_are_told() {
        for (limit, level) in [(1024, Severity::Note), (256, Severity::Slow)] {
            let finding = judge_open_files(Some(limit));
            let mend = vec![Remedy::line(LIMITS_FILE, "* hard nofile 65536")];
            assert_eq!((finding.level, finding.mend), (level, mend), "{limit}");
        }
    }

    #[test]
    fn a_cpu_without_aes_is_slow() {
        let without = with("proc/cpuinfo", "flags\t\t: fpu sse2", judge_aes);
        assert_eq!((without.level, without.mend), (Severity::Slow, vec![]));
    }

    #[test]
    fn one_of_the_programs_that_set_a_clock_is_enough() {
        let chrony = Fake::of(&[("run/chrony/chronyd.pid", "7")]);
        assert_eq!(judge_clock(&chrony.root()).text, "chronyd is running");
    }

    #[test]
    fn flags_have_two_names() {
        assert_eq!(has_aes("Features\t: fp asimd aes pmull"), Some(true));
        assert_eq!(has_aes("flags\t: fpu vaes"), Some(false));
        assert_eq!(has_aes("model name : aes"), None);
    }
}
