//! Clocks that jump by days and years, in mid-transfer and between transfers. No data is lost and no process hangs.

use std::cell::Cell;
use std::fs::File;
use std::path::PathBuf;
use std::process::Command;
use std::time::{SystemTime, UNIX_EPOCH};

use rustix::fs::{FlockOperation, flock};
use zmove_types::GROUP_BYTES;

use crate::commands::jobs::{Yard, wait_for};
use crate::connections::resume::{assert_done, stalled};
use crate::support::command::{ZMOVE, finish};
use crate::support::harness::{Site, has_program, skip, write_program};
use crate::support::tree::assert_same;

/// The wall clock of a site's programs, as an offset from the real time that can be changed while they run.
pub(crate) struct Clock(PathBuf);

impl Clock {
    /// Creates a site whose programs read the returned clock whenever they query the time. Returns `None` if this host
    /// cannot provide it.
    ///
    /// Threads of one program that query concurrently may briefly see the real time: up to faketime 0.9.10 they share
    /// one buffer.
    pub(crate) fn site() -> Option<(Site, Self)> {
        Self::site_reading(|clock| format!("FAKETIME_NO_CACHE=1 FAKETIME_TIMESTAMP_FILE='{clock}'"))
    }

    /// Creates a site whose programs read the returned clock once, when they start.
    fn site_read_at_start() -> Option<(Site, Self)> {
        Self::site_reading(|clock| format!("FAKETIME=\"$(cat '{clock}')\""))
    }

    fn site_reading(
        variables: impl FnOnce(std::path::Display<'_>) -> String,
    ) -> Option<(Site, Self)> {
        if !has_program("faketime") {
            skip("a clock that jumps needs faketime");
            return None;
        }
        let asked = Command::new("faketime")
            .args(["-m", "-f", "+0d", "printenv", "LD_PRELOAD"])
            .output();
        let library = String::from_utf8(asked.unwrap().stdout).unwrap();
        let mut site = Site::local();
        let (clock, program) = (Self(site.path("clock")), site.path("zmove"));
        clock.jump("+0");
        let script = format!(
            "#!/bin/sh\nexport FAKETIME_DONT_FAKE_MONOTONIC=1 NO_FAKE_STAT=1 {}\n\
            LD_PRELOAD='{}' exec '{ZMOVE}' \"$@\"\n",
            variables(clock.0.display()),
            library.trim_end()
        );
        write_program(&program, &script);
        site.run_by(program);
        Some((site, clock))
    }

    /// Waits for a condition while the clock advances by minutes.
    #[track_caller]
    pub(crate) fn wait_for(&self, what: &str, holds: impl Fn() -> bool) {
        let minutes = Cell::new(0);
        wait_for(what, || {
            minutes.set(minutes.get() + 1);
            self.jump(&format!("+{}", 60 * minutes.get()));
            holds()
        });
    }

    pub(crate) fn jump(&self, shift: &str) {
        // The rename ensures that no program reads a partial file.
        let new = self.0.with_extension("new");
        std::fs::write(&new, format!("{shift}\n")).unwrap();
        std::fs::rename(new, &self.0).unwrap();
    }
}

/// The clock of a host may be far ahead at first. The first runner starts after the correction.
#[test]
fn a_schedule_that_was_made_before_the_clock_was_set_back_runs() {
    let Some((site, clock)) = Clock::site() else {
        return;
    };
    let yard = Yard { site };
    clock.jump("+4000d");
    yard.run(&["jobs"]).done();
    let lock = File::create(yard.place().join("runner.lock")).unwrap();
    flock(&lock, FlockOperation::LockExclusive).unwrap();
    yard.submit(&["--every", "* * * * *"], "");
    let is_due = |day_max: i64| {
        let job = yard.job("1");
        let due = job["not_before"].as_i64().unwrap();
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
        (due - i64::try_from(now.as_secs()).unwrap()) / 86_400 < day_max
    };
    assert!(!is_due(3999));
    clock.jump("+0");
    drop(lock);
    clock.wait_for("the first run", || yard.job("1")["state"] == "done");
    assert_same(&yard.site.source(), &yard.site.target());
}

#[test]
fn a_transfer_completes_when_the_clock_jumps() {
    for shift in ["+4000d", "-4000d"] {
        let Some((mut site, clock)) = Clock::site() else {
            return;
        };
        site.start_daemon();
        let (proxy, client) = stalled(&site, |relay| site.push_by(relay, &["--json"]));
        clock.jump(shift);
        proxy.resume_without(0, u64::MAX);
        let summary = finish(client).done().summary();
        assert_eq!(assert_done(&site, &summary), 0);
    }
}

#[test]
fn a_transfer_resumes_after_a_clock_jump_unless_its_journal_has_expired() {
    for (shift, expires) in [("-4000d", false), ("+2d", false), ("+4000d", true)] {
        let Some((mut site, clock)) = Clock::site_read_at_start() else {
            return;
        };
        site.start_daemon();
        let (proxy, mut client) = stalled(&site, |relay| site.push_by(relay, &["--json"]));
        client.kill().unwrap();
        client.wait().unwrap();
        site.take_daemon().kill();
        clock.jump(shift);
        site.start_daemon();
        if expires {
            site.the_daemon().wait_for_log("removed journal");
        }
        proxy.reset(site.the_daemon().address);
        let summary = finish(site.push_by(&proxy.address, &["--json"]).start())
            .done()
            .summary();
        let resumed = assert_done(&site, &summary);
        assert_eq!(resumed < GROUP_BYTES, expires, "{shift}: {summary}");
    }
}
