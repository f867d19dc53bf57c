//! Tells the service manager that started the server (systemd, or what speaks its protocol) where it stands.
//!
//! Without `NOTIFY_SOCKET` in the environment it says nothing. Invariant: a manager that does not listen changes nothing.
//!
//! Protocol: <https://www.freedesktop.org/software/systemd/man/latest/sd_notify.html>.

#[cfg(unix)]
use sd_notify::NotifyState;

/// The model is warm and requests are taken.
#[cfg(unix)]
pub(super) fn ready(status: &str) {
    tell(NotifyState::Ready, status);
}

/// No more requests are taken; those under way are being ended.
#[cfg(unix)]
pub(super) fn stopping(status: &str) {
    tell(NotifyState::Stopping, status);
}

#[cfg(unix)]
fn tell(state: NotifyState<'_>, status: &str) {
    // A status is one line, whatever a model is called.
    let line = status.replace(char::is_control, " ");
    let _ = sd_notify::notify(&[state, NotifyState::Status(&line)]);
}

/// Nobody to tell on this system.
#[cfg(not(unix))]
pub(super) fn ready(_: &str) {}

/// Nobody to tell on this system.
#[cfg(not(unix))]
pub(super) fn stopping(_: &str) {}
