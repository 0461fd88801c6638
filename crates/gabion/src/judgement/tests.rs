use super::*;
use gabion_base::{ConfigNumber, GroupId, LogKind, Term};
use gabion_control::{Filling, FillingStep, Lag, Vitals};
use gabion_replication::GroupView;

const NOW_S: i64 = 2_000_000_000;

/// A group of three full members that are well.
pub(crate) fn status() -> GroupStatus {
    let members = [1, 2, 3].map(ReplicaId);
    let mut view = GroupView::founding(GroupId(7), &members, LogKind::Shared);
    view.members_min = 2;
    let replica = |replica| ReplicaStatus {
        replica,
        is_member: true,
        is_full: true,
        verdict: Some(Verdict::Well),
        config: Some(ConfigNumber(1)),
        is_filled: false,
        filling: None,
        is_leaving: false,
        vitals: Some(Vitals { slots: 100, slots_free: 50, ..Vitals::default() }),
    };
    let replicas = members.map(replica).to_vec();
    GroupStatus { term: Term(3), wanted: 3, is_complete: true, view, replicas }
}

/// The same without its second member, which has this verdict.
fn without_second(verdict: Verdict) -> GroupStatus {
    let mut group = status();
    group.view.members.retain(|member| member.replica != ReplicaId(2));
    let second = &mut group.replicas[1];
    (second.is_member, second.is_full, second.verdict) = (false, false, Some(verdict));
    group
}

fn around() -> Around {
    Around { unix_s: NOW_S, ..Around::default() }
}

/// The kinds and the first sentence.
fn judged(group: &GroupStatus, around: &Around) -> (Vec<Kind>, String) {
    let problems = judge(group, around);
    for problem in &problems {
        let Problem { text, advice, .. } = problem;
        assert!(text.starts_with(char::is_uppercase) && text.ends_with('.'), "{text}");
        assert!(advice.ends_with('.') && !advice.contains("  "), "{advice}");
    }
    let first = problems.first().map_or_else(String::new, |it| it.text.clone());
    (problems.iter().map(|it| it.kind).collect(), first)
}

/// The group with its second member's numbers changed.
fn with_vitals(change: impl Fn(&mut Vitals)) -> GroupStatus {
    let mut group = status();
    change(group.replicas[1].vitals.as_mut().unwrap());
    group
}

#[test]
fn a_group_that_is_well_has_no_problem() {
    assert!(judge(&status(), &around()).is_empty());
}

#[test]
fn a_stopped_member_is_named_with_its_silence_and_those_who_are_left() {
    let group = without_second(Verdict::Silent(12_300));
    let (kinds, text) = judged(&group, &around());
    assert_eq!(kinds, [Kind::Lost]);
    let expected = "Replica 2 is lost: it has stopped or is cut off, silent for 12 s; 2 of 3 full \
                    members are left.";
    assert_eq!(text, expected);
    let seat = SeatNote { node: "b".to_owned(), is_away: true, ..SeatNote::default() };
    let seats = [(ReplicaId(2), seat)].into();
    let around = Around { group: Some("orders".to_owned()), seats, ..around() };
    let (_, text) = judged(&group, &around);
    let expected = "Replica 2 on node b of group orders is lost: its node is away, silent for 12 s";
    assert!(text.starts_with(expected), "{text}");
}

#[test]
fn a_hanging_a_refusing_and_a_full_disk_are_told_apart() {
    for (verdict, kind, words) in [
        (Verdict::Stuck(1_400), Kind::HangingDisk, "hangs: a write has taken 1.4 s"),
        (Verdict::Refuses, Kind::HangingDisk, "refuses writes"),
        (Verdict::OtherDisk, Kind::Lost, "its disk is empty, foreign or older"),
        (Verdict::CutOff, Kind::Lost, "do not hear each other"),
    ] {
        let (kinds, text) = judged(&without_second(verdict), &around());
        assert_eq!(kinds, [kind], "{text}");
        assert!(text.contains("eplica 2") && text.contains(words), "{text}");
    }
    let mut group = status();
    group.replicas[1].verdict = Some(Verdict::Full(9_000));
    let (kinds, text) = judged(&group, &around());
    assert_eq!(
        (&kinds[..], &text[..]),
        (&[Kind::FullDisk][..], "The disk of replica 2 is full, for 9 s.")
    );
    group.replicas.iter_mut().for_each(|it| it.verdict = Some(Verdict::Full(9_000)));
    let (kinds, text) = judged(&group, &around());
    assert_eq!(kinds, [Kind::FullDisk; 4]);
    assert!(text.contains("all its members are full, and writes are refused"), "{text}");
}

#[test]
fn a_group_below_its_minimum_comes_before_the_members_that_it_lacks() {
    let mut group = without_second(Verdict::Silent(60_000));
    group.replicas[2].verdict = Some(Verdict::Silent(3_000));
    let (kinds, text) = judged(&group, &around());
    assert_eq!(kinds, [Kind::BelowMinimum, Kind::Lost, Kind::Lost]);
    let expected = "The group is below its minimum and takes no writes: 1 full member is left, and \
                    it needs 2.";
    assert_eq!(text, expected);
}

#[test]
fn nobody_who_answers_comes_before_all_else() {
    let mut group = status();
    group.replicas.iter_mut().for_each(|it| it.verdict = Some(Verdict::Silent(5_000)));
    let (kinds, text) = judged(&group, &around());
    assert_eq!(kinds, [Kind::NoAnswer, Kind::Lost, Kind::Lost, Kind::Lost]);
    assert_eq!(text, "The group does not answer: no member is heard by the controller.");
    group.replicas.iter_mut().for_each(|it| it.verdict = None);
    let (kinds, _) = judged(&group, &around());
    assert_eq!(kinds, [Kind::NoAnswer, Kind::Starting, Kind::Starting, Kind::Starting]);
}

#[test]
fn a_slow_disk_a_pool_that_fills_up_and_a_lag_are_told_with_numbers() {
    let (kinds, text) = judged(&with_vitals(|it| it.probe_us = 240_000), &around());
    assert_eq!(kinds, [Kind::SlowDisk]);
    assert!(text.contains("replica 2 is slow: each small write takes 240 ms"), "{text}");
    assert!(judge(&with_vitals(|it| it.probe_us = 99_999), &around()).is_empty());
    let (kinds, text) = judged(&with_vitals(|it| it.slots_free = 10), &around());
    assert_eq!(kinds, [Kind::PoolShort]);
    assert!(text.contains("10 of 100 slots are free"), "{text}");
    assert!(judge(&with_vitals(|it| it.slots_free = 11), &around()).is_empty());
    let mut group = status();
    let lag = Lag { replica: ReplicaId(3), bytes: 2 << 20, ms: 12_000 };
    group.replicas[0].vitals.as_mut().unwrap().lags = vec![lag];
    let (kinds, text) = judged(&group, &around());
    assert_eq!(kinds, [Kind::Lagging]);
    assert_eq!(text, "Replica 3 lags by 12 s and 2.0 MiB.");
}

#[test]
fn a_certificate_is_told_before_its_end_and_after_it() {
    let until = |s: i64| with_vitals(|it| it.certificate_until_s = Some(NOW_S + s));
    assert!(judge(&until(14 * DAY_S), &around()).is_empty());
    let (kinds, text) = judged(&until(9 * DAY_S + 5), &around());
    assert_eq!(kinds, [Kind::CertificateEnds]);
    assert_eq!(text, "The certificate of replica 2 expires in 9 days.");
    let (kinds, text) = judged(&until(-2 * DAY_S), &around());
    assert_eq!(kinds, [Kind::CertificateExpired]);
    assert!(text.contains("replica 2 has expired, 2 days ago"), "{text}");
    let (_, text) = judged(&until(0), &around());
    assert!(text.contains("less than a day ago"), "{text}");
    let of_controller = |s| Around { controller_until_s: Some(NOW_S + s), ..around() };
    let (kinds, text) = judged(&status(), &of_controller(9 * DAY_S));
    assert_eq!(kinds, [Kind::CertificateEnds]);
    assert_eq!(text, "The certificate of the controller expires in 9 days.");
    let mut group = status();
    group.replicas.iter_mut().for_each(|it| it.verdict = Some(Verdict::Silent(5_000)));
    let (kinds, text) = judged(&group, &of_controller(-1));
    assert_eq!(kinds[0], Kind::NoAnswer);
    assert!(text.ends_with("heard by the controller, whose certificate has expired."), "{text}");
}

#[test]
fn a_member_that_nobody_connects_with_as_its_certificate_has_expired_is_told_so() {
    let lost = without_second(Verdict::Silent(12_300));
    let expected = "Replica 2 on node b is lost: its certificate has expired, silent for 12 s; 2 \
                    of 3 full members are left.";
    // The controller has seen the certificate, or the replica's last report told of its end.
    let seat = |is_expired| SeatNote { node: "b".to_owned(), is_expired, ..SeatNote::default() };
    let seats = |is_expired| [(ReplicaId(2), seat(is_expired))].into();
    let (kinds, text) = judged(&lost, &Around { seats: seats(true), ..around() });
    assert_eq!((&kinds[..], &text[..]), (&[Kind::CertificateExpired][..], expected));
    let mut told = lost.clone();
    let vitals = Vitals { certificate_until_s: Some(NOW_S - 1), ..Vitals::default() };
    told.replicas[1].vitals = Some(vitals);
    let (_, text) = judged(&told, &Around { seats: seats(false), ..around() });
    assert_eq!(text, expected);
    let (kinds, _) = judged(&lost, &Around { seats: seats(false), ..around() });
    assert_eq!(kinds, [Kind::Lost]);
}

#[test]
fn a_member_that_is_filled_is_told_with_its_estimate() {
    let mut group = status();
    group.view.members[2].is_full = false;
    group.replicas[2].is_full = false;
    let step = FillingStep::Copying;
    group.replicas[2].filling =
        Some(Filling { step, bytes: 4 << 30, bytes_done: 1 << 30, bytes_per_s: 100 << 20 });
    let (kinds, text) = judged(&group, &around());
    assert_eq!(kinds, [Kind::Filling], "it is not also told that one is missing");
    assert!(text.starts_with("Replica 3 is being filled: copying files, 1.0 GiB of 4.0"), "{text}");
    assert!(text.ends_with("all there in about 31 s."), "{text}");
    assert_eq!(judge(&group, &around())[0].severity, Severity::Note);
}

#[test]
fn files_that_were_put_aside_are_told_with_their_place() {
    let aside = Some("/data/group-7/replica-2.broken-9".to_owned());
    let seat = SeatNote { node: "b".to_owned(), aside, ..SeatNote::default() };
    let seats = [(ReplicaId(2), seat)].into();
    let (kinds, text) = judged(&status(), &Around { seats, ..around() });
    assert_eq!(kinds, [Kind::PutAside]);
    assert!(text.starts_with("Replica 2 on node b was made anew"), "{text}");
    assert!(text.ends_with("/data/group-7/replica-2.broken-9."), "{text}");
}

#[test]
fn a_store_that_does_not_answer_a_node_with_trouble_and_a_lost_spare_are_told() {
    let store = Some("etcd does not answer".to_owned());
    let (kinds, text) = judged(&status(), &Around { store, ..around() });
    assert_eq!(kinds, [Kind::Store]);
    assert!(text.contains("without its store: etcd does not answer"), "{text}");
    let trouble = Some("its files are missing.".to_owned());
    let seat = SeatNote { node: "b".to_owned(), trouble, ..SeatNote::default() };
    let seats = [(ReplicaId(2), seat)].into();
    let (kinds, text) = judged(&status(), &Around { seats, ..around() });
    assert_eq!(kinds, [Kind::Trouble]);
    assert!(text.starts_with("Replica 2 on node b is not as it should be: its files"), "{text}");
    let mut group = without_second(Verdict::Silent(60_000));
    group.wanted = 2;
    let (kinds, _) = judged(&group, &around());
    assert_eq!(kinds, [Kind::Spare]);
    group.replicas[1].is_leaving = true;
    assert!(judge(&group, &around()).is_empty(), "it was removed");
    group.wanted = 3;
    let (kinds, text) = judged(&group, &around());
    assert_eq!(kinds, [Kind::Fewer]);
    assert!(text.contains("2 full members of the 3"), "{text}");
}
