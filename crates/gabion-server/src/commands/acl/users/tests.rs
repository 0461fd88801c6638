use super::*;

struct File(PathBuf);

impl File {
    fn new(name: &str, text: &str) -> Self {
        let path = std::env::temp_dir().join(format!("gabion-acl-{name}-{}", std::process::id()));
        fs::write(&path, text).unwrap();
        Self(path)
    }
}

impl Drop for File {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

fn lines(users: &Users) -> String {
    let lines = users.all().into_iter().map(|user| String::from_utf8(line(&user)).unwrap());
    lines.collect::<Vec<_>>().join("\n")
}

#[test]
fn what_is_saved_is_read_again_alike_for_its_owner_alone() {
    use std::os::unix::fs::PermissionsExt;
    let file = File::new("save", "# of people\n\nuser a on >p ~x* +@all -@admin (+get %R~y*)\n");
    let users = Users::of_file(&file.0).unwrap();
    assert!(users.authenticate(b"a", b"p").is_some());
    let before = lines(&users);
    assert!(before.contains("user default on nopass sanitize-payload ~* &* +@all"), "{before}");
    users.save().unwrap();
    assert_eq!(fs::metadata(&file.0).unwrap().permissions().mode() & 0o777, 0o600);
    assert!(!fs::read_to_string(&file.0).unwrap().contains(">p"));
    assert!(!users.is_file_changed());
    assert_eq!(lines(&Users::of_file(&file.0).unwrap()), before);
}

#[test]
fn a_file_with_an_error_is_named_with_its_line_and_changes_nothing() {
    let file = File::new("wrong", "user a on >p +get\n");
    let users = Users::of_file(&file.0).unwrap();
    let before = lines(&users);
    for (text, said) in [
        ("user b on\nuse c on\n", ":2: should start with user keyword"),
        ("user\n", ":1: no name of a user"),
        ("user b nonsense\n", ":1: nonsense: Syntax error"),
        ("user b +get\nuser b +set\n", ":2: Duplicate user found"),
        ("user b (+get\n", ":1: Unmatched parenthesis"),
        ("user b <secret\n", ":1: <: The password you are trying"),
    ] {
        fs::write(&file.0, text).unwrap();
        let error = users.load().err().unwrap().to_string();
        assert!(error.contains(said), "{error}");
        assert_eq!(lines(&users), before);
    }
}

/// The next start would refuse the file.
#[test]
fn nothing_can_be_saved_that_is_not_read_again() {
    let file = File::new("parentheses", "");
    let users = Users::of_file(&file.0).unwrap();
    let rules = |texts: &[&str]| -> Vec<Bytes> {
        texts.iter().map(|text| Bytes::copy_from_slice(text.as_bytes())).collect()
    };
    let set = |name: &'static str, texts: &[&str]| users.set(&name.into(), &rules(texts));
    set("(x", &["on", "~a)", "(~(b +get)"]).unwrap();
    set("y)", &["on", "~(c"]).unwrap();
    let (rule, why) = set("z", &["(~a) +get)"]).unwrap_err();
    assert_eq!((&rule[..], why), (&b"(~a) +get)"[..], rules::SYNTAX));
    users.save().unwrap();
    assert_eq!(lines(&Users::of_file(&file.0).unwrap()), lines(&users));
}

#[test]
fn a_load_names_those_whose_connections_have_to_go() {
    let file = File::new("load", "user a on >p +get\nuser b on +get\nuser c on +get\n");
    let users = Users::of_file(&file.0).unwrap();
    fs::write(&file.0, "user a on >p +get\nuser b on +set\nuser d on +get\n").unwrap();
    let changed = users.load().unwrap();
    let mut names: Vec<_> = changed.iter().map(|user| user.name.clone()).collect();
    names.sort();
    assert_eq!(names, ["b", "c"]);
    assert!(users.get(b"d").is_some());
}

#[test]
fn a_file_that_does_not_name_the_default_user_takes_no_password_away() {
    let file = File::new("default", "user a on >p +get\n");
    let users = Users::of_file(&file.0).unwrap();
    assert!(users.lets_strangers_in());
    users.set_password(b"secret").unwrap();
    fs::write(&file.0, "user b on >p +get\n").unwrap();
    users.load().unwrap();
    assert!(users.get(b"b").is_some() && !users.lets_strangers_in());
    fs::write(&file.0, "user default on nopass ~* +@all\n").unwrap();
    users.load().unwrap();
    assert!(users.lets_strangers_in());
}

/// `--requirepass-file` says more than the file of users, whenever that is read.
#[test]
fn a_password_that_the_process_was_started_with_stays_whatever_the_file_says() {
    let file = File::new("required", "user default on nopass ~* +@all\n");
    let users = Users::of_file(&file.0).unwrap().with_password(b"secret".to_vec()).unwrap();
    assert!(!users.lets_strangers_in());
    fs::write(&file.0, "user default on nopass ~* +get\n").unwrap();
    users.load().unwrap();
    assert!(!users.lets_strangers_in());
    assert!(users.authenticate(DEFAULT, b"secret").is_some());
}

#[test]
fn the_operator_is_there_where_it_has_a_password_and_is_not_listed() {
    assert!(Users::open().authenticate(OPERATOR, b"").is_none());
    let users = Users::open().with_operator(Some("secret"));
    users.set_password(b"other").unwrap();
    assert!(users.authenticate(OPERATOR, b"wrong").is_none());
    assert!(users.authenticate(OPERATOR, b"secret").unwrap().is_free());
    assert!(!lines(&users).contains("operator"));
    assert!(!users.lets_strangers_in());
}
