//! Findings about a receiver and the path to it.

use std::mem::discriminant;
use std::time::Duration;

use anyhow::Result;
use zmove_sender::SessionError;
use zmove_transport::ControlError;
use zmove_wire::{PROTOCOL_VERSION, Refusal, RefusalCode};

use super::peer::{HostKey, Peer, Reachability, Reached};
use crate::commands::doctor::finding::{Finding, Remedy, Severity};
use crate::commands::doctor::windows::Millis;

pub(super) fn findings(peer: &Peer, link_mtu: Option<u32>) -> Vec<Finding> {
    let mut findings = vec![judge_name(peer)];
    if let Some(tcp) = &peer.tcp {
        findings.push(judge_tcp(peer, tcp, peer.quic.as_ref()));
        let quic = peer.quic.as_ref();
        findings.extend(quic.map(|quic| judge_quic(peer, tcp, quic)));
    }
    if let Some(reached) = peer.reached() {
        findings.extend(judge_path(reached, link_mtu));
        findings.push(judge_host_key(peer, reached.host_key));
    }
    findings.extend(
        peer.admission
            .as_ref()
            .map(|admission| judge_admission(peer, admission)),
    );
    findings
}

fn judge_name(peer: &Peer) -> Finding {
    match &peer.addresses {
        Ok(addresses) => Finding::ok(
            "name",
            Vec::from_iter(addresses.iter().map(ToString::to_string)).join(", "),
        ),
        Err(error) => Finding::new(
            Severity::Bad,
            "name",
            format!("no address found: {error} (check the name)"),
        ),
    }
}

fn judge_tcp(peer: &Peer, tcp: &Reachability, quic: Option<&Reachability>) -> Finding {
    match (tcp, quic) {
        (
            Reachability::Unreached(reason) | Reachability::Silent(reason),
            Some(Reachability::Reached(_)),
        ) => Finding::new(
            Severity::Slow,
            "TCP",
            format!("{reason}; a push uses QUIC, with 1.5 times the CPU"),
        ),
        (Reachability::Unreached(_), _) => judge_way("TCP", peer, tcp).with_remedy(Remedy::there(
            format!("zmove serve --listen 0.0.0.0:{}", peer.host.port),
        )),
        _ => judge_way("TCP", peer, tcp),
    }
}

fn judge_quic(peer: &Peer, tcp: &Reachability, quic: &Reachability) -> Finding {
    match (quic, tcp) {
        (Reachability::Reached(_), _) => judge_way("QUIC", peer, quic),
        _ if discriminant(quic) == discriminant(tcp) => Finding::note("QUIC", "fails as TCP does"),
        (
            Reachability::Unreached(_) | Reachability::Silent(_),
            Reachability::Unreached(_) | Reachability::Silent(_),
        ) => Finding::note("QUIC", "fails as TCP does"),
        (Reachability::Unreached(reason) | Reachability::Silent(reason), _) => Finding::note(
            "QUIC",
            format!("{reason}: '--transport quic' does not work, nor a push while TCP is blocked"),
        ),
        _ => judge_way("QUIC", peer, quic),
    }
}

/// Returns the finding about one transport, independent of the result of the other transport.
fn judge_way(check: &'static str, peer: &Peer, way: &Reachability) -> Finding {
    match way {
        Reachability::Reached(Reached { address, taken, .. }) => {
            Finding::ok(check, format!("{address} in {}", Millis(*taken)))
        }
        Reachability::OtherKey(reason) => {
            let host = &peer.host;
            Finding::new(Severity::Bad, check, reason)
                .with_details(vec![
                    "only after its administrator has confirmed that the key is new:".to_owned(),
                ])
                .with_remedy(Remedy::command(format!(
                    "zmove trust remove {host} && zmove trust {host}"
                )))
        }
        Reachability::OtherProgram(reason)
        | Reachability::Refused(reason)
        | Reachability::Silent(reason)
        | Reachability::Unreached(reason) => Finding::new(Severity::Bad, check, reason),
    }
}

fn judge_path(reached: &Reached, link_mtu: Option<u32>) -> Vec<Finding> {
    let mut findings = vec![Finding::ok(
        "round trip",
        Millis(reached.round_trip).to_string(),
    )];
    if reached.round_trip >= LONG {
        findings.push(Finding::ok("first windows", FIRST_WINDOWS));
    }
    findings.extend(judge_mtu(reached, link_mtu));
    findings.extend(
        reached
            .congestion
            .as_ref()
            .map(|name| Finding::ok("congestion", name)),
    );
    findings
}

fn judge_mtu(reached: &Reached, link_mtu: Option<u32>) -> Option<Finding> {
    let mtu = reached.mtu?;
    Some(match (reached.mtu_measured, link_mtu) {
        (Some(measured), _) if measured < mtu => Finding::new(
            Severity::Slow,
            "path MTU",
            format!(
                "{measured}, measured with data: packets of up to {mtu} bytes, which both hosts send, are lost \
                 without an ICMP message. A push needs a few seconds to detect this. Let ICMP 'fragmentation needed' \
                 through, or set the MTU of the links of both hosts to {measured}"
            ),
        ),
        (None, _) => Finding::note(
            "path MTU",
            format!("{mtu} by the links; not measured, because test data did not arrive"),
        ),
        (_, Some(link)) if mtu < link.min(IP_BYTES_MAX) => Finding::note(
            "path MTU",
            format!("{mtu}, although the link here supports {link}"),
        ),
        _ => Finding::ok("path MTU", format!("{mtu}, measured with data")),
    })
}

/// Minimum round-trip time at which the slow growth of TCP's first windows noticeably delays most pushes.
const LONG: Duration = Duration::from_millis(20);
const FIRST_WINDOWS: &str = "10 packets for each lane over TCP; the administrator of the route can raise it ('ip \
                             route change ... initcwnd 64')";

fn judge_host_key(peer: &Peer, key: HostKey) -> Finding {
    match key {
        HostKey::Pinned(key) => Finding::ok("its key", format!("{key}, pinned")),
        HostKey::Vouched(key) => Finding::ok("its key", format!("{key}, certified by the site's authority")),
        HostKey::Unknown(key) => Finding::new(
            Severity::Bad,
            "its key",
            format!("{key}, not known here: a push asks to confirm it, and fails without a terminal; compare it with \
                     the key that 'zmove serve' prints"),
        )
        .with_remedy(Remedy::command(format!("zmove trust {}", peer.host))),
    }
}

fn judge_admission(peer: &Peer, admission: &Result<u16>) -> Finding {
    let key = peer.key;
    let error = match admission {
        Ok(lanes_max) => {
            let text = format!(
                "{key}, allowed, for up to {lanes_max} lanes; protocol version {PROTOCOL_VERSION}"
            );
            return Finding::ok("our key", text);
        }
        Err(error) => error,
    };
    match error.downcast_ref() {
        Some(SessionError::Refused(refusal)) => judge_refusal(peer, refusal),
        Some(SessionError::Control(ControlError::Greeting(error))) => {
            Finding::new(Severity::Bad, "protocol", error.to_string())
        }
        _ => Finding::new(
            Severity::Bad,
            "our key",
            format!("the access check failed: {error}"),
        ),
    }
}

fn judge_refusal(peer: &Peer, Refusal { code, text }: &Refusal) -> Finding {
    // This side chooses the remedy. The receiver's own advice is therefore removed from the message.
    let reason = text
        .split(" On the receiving host")
        .next()
        .unwrap_or_default()
        .trim_end_matches('.');
    let finding = Finding::new(Severity::Bad, "our key", format!("refused: {reason}"));
    let allow = format!("zmove allow {} --name NAME --root DIR --write", peer.key);
    match code {
        RefusalCode::UnknownKey if reason.contains("expired") => {
            finding.with_remedy(Remedy::there(format!("{allow} --expires 90d")))
        }
        RefusalCode::UnknownKey | RefusalCode::Denied | RefusalCode::Target => {
            finding.with_remedy(Remedy::there(allow))
        }
        _ => finding,
    }
}

/// Maximum size of an IP packet. The MTU of the loopback is one byte larger.
const IP_BYTES_MAX: u32 = 65_535;

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;
    use std::time::Duration;

    use zmove_engine::Remote;
    use zmove_transport::Fingerprint;

    use super::*;

    fn key(number: char) -> Fingerprint {
        format!("SHA256:{}E", String::from(number).repeat(42))
            .parse()
            .unwrap()
    }

    fn way(host_key: HostKey) -> Reachability {
        Reachability::Reached(Reached {
            address: SocketAddr::from(([192, 0, 2, 7], 5870)),
            round_trip: Duration::from_millis(90),
            taken: Duration::from_millis(181),
            host_key,
            mtu: Some(9000),
            mtu_measured: Some(9000),
            congestion: Some("bbr".into()),
        })
    }

    fn healthy() -> Peer {
        let host_key = HostKey::Pinned(key('B'));
        Peer {
            host: Remote::parse_endpoint("dtn").unwrap(),
            key: key('C'),
            addresses: Ok(vec![[192, 0, 2, 7].into()]),
            tcp: Some(way(host_key)),
            quic: Some(way(host_key)),
            admission: Some(Ok(64)),
        }
    }

    /// Returns the level, check and commands of each finding that is not ok.
    fn troubles(peer: &Peer) -> Vec<(Severity, &'static str, Vec<String>)> {
        let findings = findings(peer, Some(9000))
            .into_iter()
            .filter(|finding| finding.level != Severity::Ok);
        let runs = |finding: Finding| {
            finding
                .mend
                .into_iter()
                .filter_map(|mend| mend.run)
                .collect()
        };
        findings
            .map(|finding| (finding.level, finding.check, runs(finding)))
            .collect()
    }

    fn unreached() -> Option<Reachability> {
        Some(Reachability::Unreached("connect to dtn: refused".into()))
    }

    #[test]
    fn a_healthy_path_has_no_trouble() {
        assert_eq!(troubles(&healthy()), []);
        assert!(
            findings(&healthy(), None)
                .iter()
                .any(|finding| finding.text == "90 ms")
        );
    }

    #[test]
    fn a_name_without_an_address_is_all_there_is_to_say() {
        let peer = Peer {
            addresses: Err("Name or service not known".into()),
            tcp: None,
            quic: None,
            admission: None,
            ..healthy()
        };
        assert_eq!(troubles(&peer), [(Severity::Bad, "name", vec![])]);
    }

    #[test]
    fn a_transport_that_does_not_get_through_is_as_bad_as_the_other_makes_it() {
        let no_quic = Peer {
            quic: unreached(),
            ..healthy()
        };
        assert_eq!(troubles(&no_quic), [(Severity::Note, "QUIC", vec![])]);
        let no_tcp = Peer {
            tcp: unreached(),
            ..healthy()
        };
        assert_eq!(troubles(&no_tcp), [(Severity::Slow, "TCP", vec![])]);
        let neither = Peer {
            tcp: unreached(),
            quic: unreached(),
            admission: None,
            ..healthy()
        };
        let serve = vec!["zmove serve --listen 0.0.0.0:5870".to_owned()];
        assert_eq!(
            troubles(&neither),
            [
                (Severity::Bad, "TCP", serve),
                (Severity::Note, "QUIC", vec![])
            ]
        );
    }

    #[test]
    fn a_port_that_a_program_has_is_not_to_be_served_once_more() {
        let silent = || Some(Reachability::Silent("connect to dtn: no answer".into()));
        let peer = Peer {
            tcp: silent(),
            quic: unreached(),
            admission: None,
            ..healthy()
        };
        let found = [
            (Severity::Bad, "TCP", vec![]),
            (Severity::Note, "QUIC", vec![]),
        ];
        assert_eq!(troubles(&peer), found);
        let by_quic = Peer {
            tcp: silent(),
            ..healthy()
        };
        assert_eq!(troubles(&by_quic), [(Severity::Slow, "TCP", vec![])]);
    }

    #[test]
    fn another_key_is_bad_and_told_once() {
        let other = || {
            Some(Reachability::OtherKey(
                "trust dtn: it shows another key".into(),
            ))
        };
        let peer = Peer {
            tcp: other(),
            quic: other(),
            admission: None,
            ..healthy()
        };
        let run = vec!["zmove trust remove dtn:5870 && zmove trust dtn:5870".to_owned()];
        assert_eq!(
            troubles(&peer),
            [
                (Severity::Bad, "TCP", run),
                (Severity::Note, "QUIC", vec![])
            ]
        );
    }

    #[test]
    fn an_unknown_key_is_to_be_trusted_by_the_user() {
        let unknown = Some(way(HostKey::Unknown(key('D'))));
        let peer = Peer {
            tcp: unknown.clone(),
            quic: unknown,
            ..healthy()
        };
        assert_eq!(
            troubles(&peer),
            [(
                Severity::Bad,
                "its key",
                vec!["zmove trust dtn:5870".to_owned()]
            )]
        );
    }

    #[test]
    fn a_refusal_says_what_to_run_there_in_this_sides_words() {
        let words = |code, text: &str| {
            let refusal = Refusal {
                code,
                text: text.into(),
            };
            let peer = Peer {
                admission: Some(Err(SessionError::Refused(refusal).into())),
                ..healthy()
            };
            let allow = format!("zmove allow {} --name NAME --root DIR --write", peer.key);
            (troubles(&peer), allow)
        };
        let text = "this key is not known here. On the receiving host, run: rm -rf /";
        let (found, allow) = words(RefusalCode::UnknownKey, text);
        assert_eq!(found, [(Severity::Bad, "our key", vec![allow])]);
        let (found, allow) = words(
            RefusalCode::UnknownKey,
            "the permission of this key expired at 2026-01-01",
        );
        assert_eq!(
            found,
            [(
                Severity::Bad,
                "our key",
                vec![format!("{allow} --expires 90d")]
            )]
        );
        let (found, _) = words(RefusalCode::Busy, "as many transfers as there may be");
        assert_eq!(found, [(Severity::Bad, "our key", vec![])]);
    }

    #[test]
    fn packets_that_vanish_are_told_with_the_size_that_arrives() {
        let measured = |measured| {
            let mut peer = healthy();
            let Some(Reachability::Reached(reached)) = &mut peer.tcp else {
                unreachable!("it is healthy")
            };
            reached.mtu_measured = measured;
            let findings = findings(&peer, Some(9000));
            let mut of_mtu = findings.into_iter().filter(|it| it.check == "path MTU");
            of_mtu.next().map(|finding| (finding.level, finding.text))
        };
        let (level, text) = measured(Some(1500)).unwrap();
        assert_eq!(level, Severity::Slow);
        assert!(text.starts_with("1500, measured with data: packets of up to 9000 bytes"));
        assert_eq!(measured(None).unwrap().0, Severity::Note);
        assert_eq!(measured(Some(9000)).unwrap().0, Severity::Ok);
    }

    #[test]
    fn a_path_that_takes_less_than_the_link_is_told() {
        let level = |link| {
            let findings = findings(&healthy(), Some(link));
            findings
                .into_iter()
                .find(|finding| finding.check == "path MTU")
                .unwrap()
                .level
        };
        assert_eq!([level(9000), level(65_536)], [Severity::Ok, Severity::Note]);
        let mut loopback = healthy();
        let Some(Reachability::Reached(reached)) = &mut loopback.tcp else {
            unreachable!("it is healthy")
        };
        reached.mtu = Some(IP_BYTES_MAX);
        reached.mtu_measured = Some(IP_BYTES_MAX);
        assert!(
            findings(&loopback, Some(65_536))
                .iter()
                .all(|finding| finding.level == Severity::Ok)
        );
    }
}
