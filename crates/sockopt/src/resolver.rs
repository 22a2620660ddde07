//! The way in which the C library of a static program looks up names.

/// Makes a static program look up hosts only in `/etc/hosts` and by DNS, and accounts only in `/etc/passwd` and
/// `/etc/group`. Must be called before the first lookup and before the process starts another thread.
///
/// The C library would otherwise load the modules that the host's `nsswitch.conf` names. They are made for the host's
/// own C library and can crash a program that contains another one. Does nothing in a dynamic program.
pub fn resolve_without_plugins() {
    #[cfg(all(target_env = "gnu", target_feature = "crt-static"))]
    for (database, services) in [
        (c"hosts", c"files dns"),
        (c"passwd", c"files"),
        (c"group", c"files"),
    ] {
        crate::sys::configure_lookup(database, services);
    }
}
