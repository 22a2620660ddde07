//! IPv6 addresses with a zone, which names the network interface of a link-local address.

use super::black_hole::Host;
use crate::support::harness::{Site, has_program, is_root, skip};
use crate::support::tree::{assert_same, paint};

#[test]
fn a_link_local_address_with_its_zone_is_a_host() {
    let programs = ["unshare", "nsenter", "ip"];
    if !is_root() || !programs.into_iter().all(has_program) {
        return skip("a separate network needs root, unshare, nsenter and ip");
    }
    let Some(host) = Host::start() else {
        return skip("this kernel does not let us create a network");
    };
    host.run(
        "ip link add z0 type veth peer name z1; ip link set z0 up; ip link set z1 up; \
         ip address add fe80::1/64 dev z0 nodad",
    );
    let mut site = Site::local();
    host.runs(&mut site);
    paint(site.source().join("f"), 10);
    site.let_read("source");
    site.start_daemon_at("[::]:5870", &[]);
    std::fs::remove_file(site.path("client/known_hosts")).unwrap();
    let run = |words: &[&str]| site.zmove(words).outcome();
    // The port is the default one.
    run(&["trust", "--accept-new", "fe80::1%z0"]).expect(0);
    for transport in ["tcp", "quic"] {
        let options = ["--quiet", "--transport", transport];
        let target = format!("[fe80::1%z0]:5870:{transport}");
        run(&[&["push"], &options[..], &["source/", &target]].concat()).done();
        assert_same(&site.source(), &site.target().join(transport));
        let source = format!("[fe80::1%z0]:{}", site.source().display());
        run(&[&["pull"], &options[..], &[&source, transport]].concat()).done();
        assert_same(&site.source(), &site.path(transport).join("source"));
    }
    run(&["push", "source/", "[fe80::1%none]:x"])
        .expect(10)
        .says(&["fe80::1%none"]);
    run(&["push", "source/", "fe80::1%z0:x"])
        .expect(1)
        .says(&["write an IPv6 address in brackets"]);
}
