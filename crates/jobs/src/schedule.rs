//! Start times of jobs: a single time, or a schedule in crontab syntax. Times are in the host's time zone.

use std::fmt;
use std::str::FromStr;

use chrono::{DateTime, Days, Local, NaiveDateTime, NaiveTime, TimeZone, Utc};
use croner::Cron;

use crate::moment::Moment;

/// A schedule in crontab syntax: minute, hour, day of the month, month, day of the week.
#[derive(Clone, Debug)]
pub struct Schedule {
    typed: String,
    cron: Cron,
}

impl Schedule {
    /// Returns the first time after `after`, or `None` if there is none.
    #[must_use]
    pub fn next(&self, after: Moment) -> Option<Moment> {
        self.next_in(&local(after)?)
    }

    fn next_in<Tz: TimeZone>(&self, after: &DateTime<Tz>) -> Option<Moment> {
        let next = self.cron.find_next_occurrence(after, false).ok()?;
        Some(Moment(next.timestamp_millis()))
    }
}

impl FromStr for Schedule {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let fail = |why: String| {
            format!(
                "'{text}' is not a valid schedule: use the syntax of cron, for example '0 2 * * *' for 02:00 each \
                 day: {why}"
            )
        };
        refuse_unsupported_syntax(text).map_err(fail)?;
        let is_wrong = |_| {
            fail(
                "a field has a value out of its range, or is not written as in a crontab"
                    .to_owned(),
            )
        };
        let cron = Cron::from_str(text).map_err(is_wrong)?;
        let schedule = Self {
            typed: text.to_owned(),
            cron,
        };
        match schedule.next(Moment::now()) {
            Some(_) => Ok(schedule),
            None => Err(fail("the schedule never matches".to_owned())),
        }
    }
}

/// The fields of a schedule and the number of values of each.
const FIELDS: [(&str, u32); 5] = [
    ("minute", 60),
    ("hour", 24),
    ("day of the month", 31),
    ("month", 12),
    ("day of the week", 7),
];

/// Refuses text to which the parser would give an unexpected meaning: a field for seconds, a step larger than its
/// field, or an empty element of a list.
fn refuse_unsupported_syntax(text: &str) -> Result<(), String> {
    let fields: Vec<_> = text.split_whitespace().collect();
    if matches!(fields[..], [word] if word.starts_with('@')) {
        return Ok(());
    }
    if fields.len() != FIELDS.len() {
        let count = fields.len();
        let word = if count == 1 { "field" } else { "fields" };
        return Err(format!(
            "expected five fields (minute, hour, day of the month, month, day of the week), found {count} {word}"
        ));
    }
    for (field, (name, values)) in fields.into_iter().zip(FIELDS) {
        for part in field.split(',') {
            let step = part.split_once('/').map(|(_, step)| step.parse::<u32>());
            if part.is_empty() {
                return Err(format!("the {name} '{field}' has an empty part"));
            }
            if step.is_some_and(|step| step.is_ok_and(|step| step > values)) {
                return Err(format!(
                    "the {name} '{field}' has a step of more than {values}"
                ));
            }
        }
    }
    Ok(())
}

impl fmt::Display for Schedule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.typed)
    }
}

/// A start time as typed, and the timestamp that it meant when it was parsed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StartTime {
    typed: String,
    moment: Moment,
}

impl StartTime {
    /// Parses `2026-11-26T02:00:00+01:00`, `2026-11-26 02:00` or `02:00`. The last form means the next time at which
    /// the clock shows 02:00. Forms without an offset are in the host's time zone.
    ///
    /// # Errors
    /// The text has none of these forms, or the time does not exist.
    pub fn parse(text: &str, now: Moment) -> Result<Self, String> {
        Ok(Self {
            typed: text.to_owned(),
            moment: parse_moment(text, now)?,
        })
    }

    /// Returns the text as typed.
    #[must_use]
    pub fn typed(&self) -> &str {
        &self.typed
    }

    /// Returns the start time.
    #[must_use]
    pub const fn moment(&self) -> Moment {
        self.moment
    }
}

/// Returns the earliest start time of a job as of `now`, or `None` if the job may start immediately. The result depends
/// only on the typed texts and `now`, so a clock that was wrong at submission does not affect it.
#[must_use]
pub fn first_time(
    at: Option<&StartTime>,
    schedule: Option<&Schedule>,
    now: Moment,
) -> Option<Moment> {
    let at = at.map(StartTime::moment);
    schedule
        .and_then(|schedule| schedule.next(at.unwrap_or(now)))
        .or(at)
}

/// Parses the forms that `StartTime::parse` documents.
fn parse_moment(text: &str, now: Moment) -> Result<Moment, String> {
    let fail = || {
        format!(
            "'{text}' is not a valid time: write '02:00', '2026-11-26 02:00' or '2026-11-26T02:00:00Z'"
        )
    };
    if let Ok(time) = DateTime::parse_from_rfc3339(text) {
        return Ok(Moment(time.timestamp_millis()));
    }
    let forms = [
        "%Y-%m-%d %H:%M",
        "%Y-%m-%d %H:%M:%S",
        "%Y-%m-%dT%H:%M",
        "%Y-%m-%dT%H:%M:%S",
    ];
    if let Some(time) = forms
        .iter()
        .find_map(|form| NaiveDateTime::parse_from_str(text, form).ok())
    {
        return from_local(time).ok_or_else(fail);
    }
    let time = NaiveTime::parse_from_str(text, "%H:%M").map_err(|_| fail())?;
    let today = local(now).ok_or_else(fail)?.date_naive();
    let days = [today, today + Days::new(1)].map(|day| from_local(day.and_time(time)));
    days.into_iter()
        .flatten()
        .find(|moment| *moment > now)
        .ok_or_else(fail)
}

/// Formats a timestamp in the host's time zone.
#[must_use]
pub fn format_local(moment: Moment) -> String {
    local(moment).map_or_else(String::new, |time| {
        time.format("%Y-%m-%d %H:%M:%S").to_string()
    })
}

fn local(moment: Moment) -> Option<DateTime<Local>> {
    Some(
        Utc.timestamp_millis_opt(moment.0)
            .single()?
            .with_timezone(&Local),
    )
}

/// Returns the earliest time at which the local clock shows `time`, or `None` if daylight saving time skips it.
fn from_local(time: NaiveDateTime) -> Option<Moment> {
    Some(Moment(
        time.and_local_timezone(Local)
            .earliest()?
            .timestamp_millis(),
    ))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn at(text: &str) -> Moment {
        Moment(
            DateTime::parse_from_rfc3339(text)
                .unwrap()
                .timestamp_millis(),
        )
    }

    #[test]
    fn a_schedule_has_its_next_time_after_the_present_one() {
        let schedule: Schedule = "0 2 * * *".parse().unwrap();
        let next = |text: &str| schedule.next_in(&DateTime::parse_from_rfc3339(text).unwrap());
        assert_eq!(
            next("2026-11-26T01:59:59Z"),
            Some(at("2026-11-26T02:00:00Z"))
        );
        assert_eq!(
            next("2026-11-26T02:00:00Z"),
            Some(at("2026-11-27T02:00:00Z"))
        );
    }

    #[test]
    fn what_is_no_schedule_is_refused() {
        for text in [
            "",
            "daily",
            "0 25 * * *",
            "* * * *",
            "0 0 31 2 *",
            "0 2 * * * *",
            "0 0 2 * * * 2027",
            "*/61 * * * *",
            "0 0-12/25 * * *",
            "1,2,,3 * * * *",
            "0 2 * * 1,",
            "0 2 * * @daily",
            "@noon",
        ] {
            let error = text.parse::<Schedule>().unwrap_err();
            assert!(error.contains("is not a valid schedule"), "{error}");
        }
    }

    #[test]
    fn all_that_cron_has_is_read() {
        for text in [
            "@daily",
            "@hourly",
            "*/15 * * * *",
            "*/60 * * * *",
            "0,30 8-18/2 * jan-jun mon-fri",
            " 0  2 * * 7 ",
        ] {
            let schedule = text.parse::<Schedule>();
            assert!(schedule.is_ok(), "{text}: {schedule:?}");
        }
    }

    #[test]
    fn moments_are_read() {
        let now = at("2026-11-25T22:00:00Z");
        assert_eq!(
            parse_moment("2026-11-26T02:00:00+01:00", now),
            Ok(at("2026-11-26T01:00:00Z"))
        );
        let clock = parse_moment("02:00", now).unwrap();
        assert!(clock > now && clock.since(now) <= Duration::from_secs(25 * 3600));
        assert!(format_local(clock).ends_with(" 02:00:00"));
        assert_eq!(parse_moment(&format_local(clock), now), Ok(clock));
        for text in ["", "2", "25:00", "tomorrow", "2026-13-01 00:00"] {
            assert!(parse_moment(text, now).is_err(), "{text}");
        }
    }
}
