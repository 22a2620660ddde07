//! What a runner says of the time of its certificates while it runs, since it reads them at its start alone.

use std::path::Path;
use std::time::Duration;

use rustls::pki_types::CertificateDer;
use zmove_jobs::{Moment, shown};

use super::judge::end;

/// Lines about certificates whose time ends, each to be said once.
#[derive(Clone, Debug, Default)]
pub struct Reminders(Vec<Reminder>);

#[derive(Clone, Debug)]
struct Reminder {
    due: Moment,
    text: String,
}

impl Reminders {
    /// Adds what is to be said of a certificate in a file.
    pub(super) fn add(&mut self, what: &str, path: &Path, certificate: &CertificateDer<'_>) {
        let Some(end) = end(certificate) else { return };
        let soon = Moment(end.0.saturating_sub(Moment(0).after(NOTICE).0));
        for (due, verb) in [(soon, "expires"), (end, "expired")] {
            let (path, at) = (path.display(), shown(end));
            let text = format!(
                "{what} in '{path}' {verb} at {at}: issue another one, and start the runner anew"
            );
            self.0.push(Reminder { due, text });
        }
    }

    /// What is to be said now, and has not been said.
    pub fn due(&mut self, now: Moment) -> Vec<String> {
        let (due, later) = std::mem::take(&mut self.0)
            .into_iter()
            .partition(|reminder| reminder.due <= now);
        self.0 = later;
        let due: Vec<Reminder> = due;
        due.into_iter().map(|reminder| reminder.text).collect()
    }
}

/// How long before its end a certificate is told of.
const NOTICE: Duration = Duration::from_secs(14 * 24 * 60 * 60);

#[cfg(test)]
mod tests {
    use rcgen::{CertificateParams, KeyPair, date_time_ymd};

    use super::*;

    #[test]
    fn the_end_of_a_certificate_is_told_before_and_when_it_comes_each_once() {
        let mut params = CertificateParams::default();
        params.not_after = date_time_ymd(2026, 1, 15);
        let certificate = params.self_signed(&KeyPair::generate().unwrap()).unwrap();
        let mut reminders = Reminders::default();
        reminders.add(
            "the certificate",
            Path::new("/etc/runner.pem"),
            certificate.der(),
        );
        // The first second of 2026.
        let first = Moment(1_767_225_600_000);
        assert!(reminders.due(Moment(first.0 - 1)).is_empty());
        let said = reminders.due(first);
        assert!(
            said.len() == 1 && said[0].contains("the certificate in '/etc/runner.pem' expires at "),
            "{said:?}"
        );
        let end = first.after(NOTICE);
        assert!(reminders.due(Moment(end.0 - 1)).is_empty());
        let said = reminders.due(end);
        assert!(
            said.len() == 1 && said[0].contains(" expired at "),
            "{said:?}"
        );
        assert!(reminders.due(Moment(i64::MAX)).is_empty());
    }
}
