//! Addresses of servers: what a person types, what a page of a given origin can reach, and what to do where it cannot.
//!
//! Pure: it asks nobody. Invariant: what comes out of [`server_address`] begins with http:// or https:// and has a host.

/// The longest address that is read, in bytes.
const MAX_ADDRESS: usize = 2048;

/// The scheme, host and port of an address: `https://example.org:8443`; empty where it has none.
pub fn origin(url: &str) -> &str {
    let Some(start) = url.find("://").map(|at| at + 3) else { return "" };
    let end = url[start..].find(['/', '?', '#']).map_or(url.len(), |at| start + at);
    &url[..end]
}

/// Whether a host is this machine: browsers let a page of anywhere reach it unencrypted.
fn is_this_machine(host: &str) -> bool {
    let name = host.strip_suffix('.').unwrap_or(host);
    name == "localhost" || name.ends_with(".localhost") || name == "[::1]" || {
        let numbers: Vec<&str> = name.split('.').collect();
        numbers.len() == 4 && numbers[0] == "127" && numbers.iter().all(|number| number.parse::<u8>().is_ok())
    }
}

/// Host and port of what stands between `://` and the path.
fn host_and_port(authority: &str) -> Option<(&str, Option<&str>)> {
    let end = match authority.strip_prefix('[') {
        Some(rest) => rest.find(']')? + 2,
        None => authority.find(':').unwrap_or(authority.len()),
    };
    let (host, rest) = authority.split_at(end);
    match rest.strip_prefix(':') {
        Some("") => Some((host, None)),
        Some(port) => Some((host, Some(port))),
        None => rest.is_empty().then_some((host, None)),
    }
}

/// The address of a server as it is asked: without a slash at its end, and without `/v1`, which other clients want there.
/// One without a scheme gets http on this machine and the page's own elsewhere; `.` is the host of the page.
///
/// # Errors
/// A sentence: what is wrong with it and what to write, or why a page of `page_url` cannot reach it.
pub fn server_address(typed: &str, page_url: &str) -> Result<String, String> {
    const EXAMPLE: &str = "write one such as http://127.0.0.1:8080";
    let typed = typed.trim();
    if typed.is_empty() {
        return Err(format!("The server's address is empty; {EXAMPLE}."));
    }
    let shown: String = typed.chars().take(80).collect();
    let wrong = |what: &str| Err(format!("{shown:?} is no server's address: {what}; {EXAMPLE}."));
    if typed.len() > MAX_ADDRESS {
        return wrong(&format!("it has more than {MAX_ADDRESS} bytes"));
    }
    if typed == "." {
        return server_address(origin(page_url), page_url);
    }
    let is_secure_page = page_url.starts_with("https://");
    let (scheme, rest) = match typed.split_once("://") {
        Some((scheme, rest)) => (scheme.to_ascii_lowercase(), rest),
        None => (String::new(), typed),
    };
    let rest = &rest[..rest.find(['?', '#']).unwrap_or(rest.len())];
    let (authority, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
    if authority.contains('@') {
        return wrong("it holds a name or a password; give the key beside it");
    }
    if rest.contains(|c: char| c.is_whitespace() || c.is_control() || c == '\\') {
        return wrong("it has a blank or a backslash in it");
    }
    let Some((host, port)) = host_and_port(authority).filter(|(host, _)| !host.is_empty()) else {
        return wrong("it has no host");
    };
    if port.is_some_and(|port| port.parse::<u16>().is_err() || port.starts_with('+')) {
        return wrong("its port is no number up to 65535");
    }
    let (host, port) = (host.to_ascii_lowercase(), port.map(|port| format!(":{port}")).unwrap_or_default());
    let is_near = is_this_machine(&host);
    let scheme = match scheme.as_str() {
        "" if is_secure_page && !is_near => "https",
        "" | "http" => "http",
        "https" => "https",
        other => return wrong(&format!("pages reach http and https, not {other:?}")),
    };
    if is_secure_page && scheme == "http" && !is_near {
        return Err(format!(
            "This page came over https, and browsers let such a page reach http only on this machine: {shown:?} is \
             elsewhere. Put the server behind https, or open the page that the server has itself, http://{host}{port}/."
        ));
    }
    let path = path.trim_end_matches('/');
    let path = path.strip_suffix("/v1").unwrap_or(path).trim_end_matches('/');
    Ok(format!("{scheme}://{host}{port}{path}"))
}

/// What to tell where a browser said no more than that nothing came: it hides from pages whether a server is down or does
/// not let them ask.
pub fn unreachable(address: &str, page_url: &str) -> String {
    let page = match origin(page_url) {
        "" => "*",
        origin => origin,
    };
    if page == origin(address) {
        return format!("{address} does not answer. Start it again with `firstlight serve`.");
    }
    format!(
        "{address} does not answer, or does not let this page ask; a browser does not say which. \
         Start it with `firstlight serve --cors {page}`."
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    const NEAR: &str = "http://127.0.0.1:9000/firstlight/index.html";
    const SECURE: &str = "https://pages.example/firstlight/";

    #[test]
    fn what_a_person_types_becomes_an_address() {
        let check = |typed: &str, page: &str, expected: &str| {
            assert_eq!(server_address(typed, page).as_deref(), Ok(expected), "{typed:?} on {page}");
        };
        check("http://127.0.0.1:8080", NEAR, "http://127.0.0.1:8080");
        check("  HTTP://LocalHost:8080/ ", NEAR, "http://localhost:8080");
        check("http://h:1/v1/", NEAR, "http://h:1");
        check("http://h/some/where/v1?x=1#y", NEAR, "http://h/some/where");
        check("http://[::1]:8080/", NEAR, "http://[::1]:8080");
        check("http://h:/", NEAR, "http://h");
        check("localhost:8080", SECURE, "http://localhost:8080");
        check("example.org", SECURE, "https://example.org");
        check("example.org", NEAR, "http://example.org");
        check(".", NEAR, "http://127.0.0.1:9000");
        check("http://127.8.9.1:8080", SECURE, "http://127.8.9.1:8080");
        check("https://example.org", SECURE, "https://example.org");
        check("http://caf\u{e9}.example", NEAR, "http://caf\u{e9}.example");
    }

    #[test]
    fn what_is_no_address_or_out_of_reach_is_told_in_a_sentence() {
        let check = |typed: &str, page: &str, part: &str| {
            let sentence = server_address(typed, page).unwrap_err();
            assert!(sentence.contains(part) && sentence.ends_with('.'), "{typed:?}: {sentence}");
        };
        check("", NEAR, "empty");
        check("ftp://h", NEAR, "not \"ftp\"");
        check("javascript://alert(1)", NEAR, "not \"javascript\"");
        check("http://", NEAR, "no host");
        check("http://:8080", NEAR, "no host");
        check("http://[::1", NEAR, "no host");
        check("http://[::1]8080", NEAR, "no host");
        check("http://h:99999", NEAR, "65535");
        check("http://h:+1", NEAR, "65535");
        check("http://a:b@h", NEAR, "password");
        check("http://h /", NEAR, "blank");
        check(&"x".repeat(3000), NEAR, "2048 bytes");
        check(".", "about:blank", "empty");
        check("http://192.168.0.7:8080", SECURE, "http://192.168.0.7:8080/");
        check("http://127.0.0.1.example.org", SECURE, "over https");
        check("http://127.0.0.256", SECURE, "over https");
    }

    #[test]
    fn who_does_not_answer_is_told_with_the_command_that_helps() {
        let check = |page: &str, part: &str| {
            let sentence = unreachable("http://127.0.0.1:8080", page);
            assert!(sentence.contains(part), "{page}: {sentence}");
        };
        check(NEAR, "--cors http://127.0.0.1:9000`");
        check("https://pages.example/x", "--cors https://pages.example`");
        check("http://127.0.0.1:8080/", "with `firstlight serve`");
        check("about:blank", "--cors *`");
    }
}
