/* SPDX-License-Identifier: Apache-2.0 */
/* `tern worker`: runs one worker. It reads the job's data, connects to all servers, and
 * computes its slots (a slot is one of the gradients that are added up in a step; each
 * worker computes some of them). Worker 0, or the first remaining worker if worker 0 is
 * lost, also tests the model, generates text and saves the parameters. */
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/recent.h"
#include "base/util.h"
#include "client/engine_computer.h"
#include "client/worker.h"
#include "ps/view.h"
#include "tools/data.h"
#include "tools/earlier.h"
#include "tools/host_file.h"
#include "tools/init_from.h"
#include "tools/job.h"
#include "tools/role.h"
#include "tools/secret.h"
#include "tools/servers.h"

#define REPORT_NS (200 * TERN_NS_PER_MS)

struct worker_settings {
	struct job_settings job; /* must be first: JOB_OPTIONS has offsets into it */
	struct secret_settings secret;
	const char *join;
	uint64_t index, spin_us, wait_s, server_wait_s;
	double drain_within_s;
};

static const struct option options[] = {
	OPTION(TEXT, "join", "ADDRESS,...",
		"addresses of all servers of the job, in the same order for all workers; "
		"several addresses of one server are joined by +",
		struct worker_settings, join),
	OPTION(COUNT, "index", "I",
		"which worker this is, from 0; the number of --workers or above adds a "
		"worker to a job by hand with --snapshots",
		struct worker_settings, index, .initial = "0", .max = 4095),
	OPTION(COUNT, "wait", "S",
		"seconds to keep trying to connect to a server that does not listen yet",
		struct worker_settings, wait_s, .initial = "300", .min = 1, .max = 86400),
	OPTION(COUNT, "spin-us", "US", "microseconds to poll for events before sleeping",
		struct worker_settings, spin_us, .initial = "0", .max = 1000000),
	SERVER_WAIT_OPTION(struct worker_settings, server_wait_s),
	DRAIN_OPTION(struct worker_settings, drain_within_s),
	SECRET_OPTIONS(struct worker_settings, secret),
	JOB_OPTIONS,
	OPTION_END,
};

#define RECENT 16u /* number of progress reports that are kept */
/* How often a worker comes again that was lost while it lived, in how long. */
#define CUT_MOST      3u
#define CUT_WINDOW_NS (600 * TERN_NS_PER_S)

/* The progress at one moment: time, steps done, bytes moved. */
struct mark {
	uint64_t ns, step, bytes;
};

struct worker_role {
	struct role role;
	const struct worker_settings *settings;
	struct servers named;  /* those of --join, where they are now */
	struct tern_view view; /* the job's servers, where they are now */
	struct tern_worker_place
		places[TERN_SERVERS_MAX]; /* and where else they may be */
	struct job_data data;
	struct device device;
	struct tern_model *model;
	struct init_from init_from;
	struct tern_engine *engine;
	struct engine_computer *computer;
	struct tern_worker *worker;
	uint64_t my_steps;
	char save_path[4096], interrupted_path[4096];
	char job_name[EARLIER_NAME_BYTES];
	bool made_directory;
	/* Rates are computed from these. begun: the progress when the steps began, or
	 * after the first step if there are more; last: at the last step; recent: at the
	 * last reports. */
	struct mark begun, last, recent[RECENT];
	uint64_t recent_count, report_ns;
	uint64_t first; /* the step that the job begins at: 0, or that of a snapshot */
	bool has_begun; /* the steps have begun once */
	struct tern_recent cuts; /* the worker was lost while it lived */
};

/* ---- events ---- */

/* Steps per second of this worker since the mark `since`. */
static double own_steps_per_s(const struct worker_role *w, const struct mark *since)
{
	uint64_t ns = w->last.ns - since->ns;

	return ns ? (double)(w->last.step - since->step) / ((double)ns / 1e9) : 0;
}

/* Sets the rates of the whole job since `since`. In sync mode all workers take part in
 * the same steps; in async mode each makes its own steps. */
static void set_rates(
	const struct worker_role *w, const struct mark *since, json_t *event)
{
	const struct job_settings *job = &w->settings->job;
	bool sync = job->mode.kind == TERN_MODE_SYNC;
	double own = own_steps_per_s(w, since),
	       seconds = (double)(w->last.ns - since->ns) / 1e9;

	report_number(event, "steps_per_s", sync ? own : own * (double)job->workers);
	report_number(event, "samples_per_s",
		own * (double)(sync ? job->slots : job->workers) * (double)job->batch);
	report_number(event, "mb_per_s",
		seconds > 0 ? (double)(w->last.bytes - since->bytes) / 1e6 / seconds : 0);
}

/* Returns the oldest report that is kept, so that the printed rate follows the present
 * speed. */
static const struct mark *recent(const struct worker_role *w)
{
	return &w->recent[w->recent_count < RECENT ? 0 : (w->recent_count + 1) % RECENT];
}

static void progress(void *arg, const struct tern_worker_progress *p)
{
	struct worker_role *w = arg;
	uint64_t now_ns = tern_clock_ns();
	json_t *event;

	/* The final rates leave out the first step, unless it is the only one: it is slow,
	 * since memory is touched and libraries are loaded for the first time. */
	if (w->last.step == w->first + 1)
		w->begun = w->last;
	w->last = (struct mark){.ns = now_ns, .step = p->step, .bytes = p->bytes};
	/* begun() was not called yet: this worker began without a slot, and its first
	 * parameters are those after some steps of the others */
	if (!w->begun.ns)
		w->begun = w->recent[0] = w->last;
	if (now_ns < w->report_ns && p->step != w->my_steps)
		return;
	w->report_ns = now_ns + REPORT_NS;
	event = json_pack("{ss sI sI}", "event", "progress", "step", (json_int_t)p->step,
		"steps", (json_int_t)w->my_steps);
	report_number(event, "loss", p->loss);
	if (w->settings->job.mode.kind == TERN_MODE_SYNC)
		report_number(event, "lr",
			(double)tern_schedule_lr(
				&w->settings->job.optimizer.rule.schedule,
				w->settings->job.optimizer.rule.lr, p->step));
	set_rates(w, recent(w), event);
	role_report(&w->role, event);
	w->recent[++w->recent_count % RECENT] = w->last;
}

/* A job that goes on from a snapshot may have the command line with which it began, as after
 * a batch system has queued it anew. Worker 0 says for all which parameters count. */
static void note_init_from(struct worker_role *w, uint64_t first)
{
	const char *path = w->settings->job.init_from;
	char line[500];

	if (!path || w->settings->index != 0)
		return;
	snprintf(line, sizeof(line),
		"%s: the job goes on from the snapshot of step %llu: the parameters of "
		"--init-from %.300s count only for a job that begins",
		w->role.name, (unsigned long long)first, path);
	role_note(&w->role, line);
}

static void begun(void *arg, uint64_t first)
{
	struct worker_role *w = arg;

	if (first > 0 && !w->has_begun)
		note_init_from(w, first);
	w->has_begun = true;
	w->recent_count = 0;
	w->begun = w->recent[0] = w->last =
		(struct mark){.ns = tern_clock_ns(), .step = first};
	w->first = first;
	role_begun(&w->role, json_pack("{ss}", "event", "begun"), first);
}

/* Returns how much device memory the worker and its engine hold, in bytes. */
static json_int_t device_bytes(const struct worker_role *w)
{
	return (json_int_t)(w->engine->device_bytes +
			    tern_worker_device_bytes(w->worker));
}

/* Reports the GPU on which this worker computes; reports nothing for the CPU. */
static void report_device(struct worker_role *w)
{
	char device[24];

	if (!w->device.api)
		return;
	device_name(&w->device, device, sizeof(device));
	role_report(&w->role,
		json_pack("{ss ss sI ss so sI}", "event", "device", "role", "worker",
			"index", (json_int_t)w->settings->index, "device", device, "text",
			report_text(w->engine->name), "device_bytes", device_bytes(w)));
}

static void note(void *arg, const char *text)
{
	struct worker_role *w = arg;
	char line[500];

	snprintf(line, sizeof(line), "%s: %s", w->role.name, text);
	role_note(&w->role, line);
}

/* Reports steps that were not made. In async mode the steps of a lost worker are not made
 * by others. */
static void note_missing(
	struct worker_role *w, const struct tern_worker_results *results, json_t *event)
{
	const struct job_settings *job = &w->settings->job;
	uint64_t none = job->steps - results->steps_made - results->steps_torn;
	char text[300];

	json_object_set_new(
		event, "steps_torn", json_integer((json_int_t)results->steps_torn));
	json_object_set_new(event, "steps_missing", json_integer((json_int_t)none));
	snprintf(text, sizeof(text),
		"%llu of %llu steps were made: lost workers left %llu undone, and %llu "
		"changed only a part of the parameters",
		(unsigned long long)results->steps_made, (unsigned long long)job->steps,
		(unsigned long long)none, (unsigned long long)results->steps_torn);
	note(w, text);
}

/* Reports another worker that was lost. `tern train` does not print this event, since a
 * server reports the same loss. */
static void lost(void *arg, uint32_t worker, const char *text)
{
	struct worker_role *w = arg;
	char line[700];

	snprintf(line, sizeof(line), "%s: %s", w->role.name, text);
	role_report(&w->role, json_pack("{ss sI so}", "event", "lost", "worker",
				      (json_int_t)worker, "text", report_text(line)));
}

/* Warns if the final loss is more than 10 % above the first one. Smaller rises are
 * normal, since batches differ. */
static void note_divergence(
	struct worker_role *w, const struct tern_worker_results *results)
{
	char text[200];

	if (!(results->loss > 1.1 * results->first_loss))
		return;
	snprintf(text, sizeof(text),
		"the loss has risen from %.4g to %.4g: the training has diverged, a "
		"lower learning rate may help",
		results->first_loss, results->loss);
	note(w, text);
}

static void set_slot_losses(const struct tern_worker_results *results, json_t *event)
{
	json_t *losses = json_array();

	for (uint32_t i = 0; i < results->slot_loss_count; i++)
		json_array_append_new(losses,
			json_pack("[I, f]", (json_int_t)results->slot_losses[i].slot,
				results->slot_losses[i].loss));
	json_object_set_new(event, "slot_losses", losses);
}

/* Reports that there was no step for long. `tern train` does not print this event, since
 * its servers report a long wait too, as a note. */
static void waiting(void *arg, const char *text)
{
	struct worker_role *w = arg;
	char line[500];

	snprintf(line, sizeof(line), "%s: %s", w->role.name, text);
	role_report(&w->role,
		json_pack("{ss so}", "event", "waiting", "text", report_text(line)));
}

static void report_end(struct worker_role *w, const struct tern_worker_results *results)
{
	const struct job_settings *job = &w->settings->job;
	const struct engine_results *engine = &w->computer->results;
	char device[24];
	json_t *event;

	if (engine->written)
		role_report(&w->role, json_pack("{ss so}", "event", "generated", "text",
					      report_text(engine->written)));
	event = json_pack("{ss sI sb}", "event", "done", "steps",
		(json_int_t)(results->finisher ? results->steps_made : results->steps),
		"finisher", results->finisher);
	if (results->finisher && results->steps_made < job->steps)
		note_missing(w, results, event);
	if (results->finisher)
		note_divergence(w, results);
	report_number(event, "loss", results->loss);
	set_slot_losses(results, event);
	if (w->data.test && results->finisher) {
		report_number(event, "test_loss", engine->test_loss);
		report_number(event, "test_accuracy", engine->test_accuracy);
	}
	if (isfinite(engine->test_auc))
		report_number(event, "test_auc", engine->test_auc);
	set_rates(w, &w->begun, event);
	device_name(&w->device, device, sizeof(device));
	json_object_set_new(event, "device", json_string(device));
	json_object_set_new(event, "device_bytes", json_integer(device_bytes(w)));
	role_report(&w->role, event);
}

static void report_saved(struct worker_role *w, const struct tern_worker_results *results)
{
	json_t *event = json_pack("{ss so sI sI}", "event", "saved", "path",
		report_text(results->saved_path), "step", (json_int_t)results->saved_step,
		"steps",
		(json_int_t)(results->saved_own ? w->my_steps : w->settings->job.steps));

	if (results->saved_own)
		json_object_set_new(
			event, "worker", json_integer((json_int_t)w->settings->index));
	role_report(&w->role, event);
}

static const char *how_it_left(const struct tern_worker_results *results)
{
	if (results->job_waits)
		return "it has left as the last worker: the servers keep the job in "
		       "memory, and wait for another worker";
	if (!results->was_last)
		return "it has left, the job goes on";
	return results->saved_path ? "it has saved the parameters and left, since no "
				     "other worker was seen to go on"
				   : "it has left and saved nothing, and no other worker "
				     "was seen to go on";
}

/* True: this worker waits for its servers, or (`cut`) comes again. */
static bool goes_back(struct worker_role *w, const char *text, bool cut)
{
	uint64_t wait_s = w->settings->server_wait_s;
	char line[400] = "this worker comes again";

	if (!cut)
		snprintf(line, sizeof(line),
			"this worker waits up to %llu s for all servers, and goes on "
			"with them from what they have in memory, or from their newest "
			"snapshot. If a server was lost, start it again at its address, "
			"or elsewhere with --join",
			(unsigned long long)wait_s);
	return role_goes_back(&w->role, wait_s, text, line);
}

/* The others go on without this worker, which lives. True: it may come again, unless that happens
 * time and again, since it is too slow, say. */
static bool may_come_again(struct worker_role *w)
{
	return tern_recent_count(&w->cuts, CUT_WINDOW_NS, CUT_MOST, tern_clock_ns());
}

/* A server is at a new address. */
static void moved(void *arg, uint32_t server, const char *address)
{
	struct worker_role *w = arg;
	uint32_t index = tern_view_find(&w->view, server);

	snprintf(w->view.servers[index], sizeof(w->view.servers[index]), "%s", address);
	if (!w->view.added[index])
		snprintf(w->named.address[server], sizeof(w->named.address[server]), "%s",
			address);
}

/* The job has other servers, or another number of workers. */
static bool viewed(void *arg, const struct tern_view *view)
{
	struct worker_role *w = arg;
	struct tern_view located = *view;

	if (!tern_view_locate(&located, w->named.address, w->named.count))
		return false;
	w->view = located;
	return true;
}

static void ended(void *arg, int status, const char *text,
	const struct tern_worker_results *results)
{
	struct worker_role *w = arg;

	w->role.can_resume = w->role.can_resume || results->can_resume;
	if (results->saved_path) {
		w->made_directory = false;
		report_saved(w, results);
		if (results->saved_path == w->save_path)
			earlier_remove(w->interrupted_path, w->job_name);
	}
	if (results->left) {
		w->role.left = !results->job_waits;
		note(w, how_it_left(results));
	} else if ((status == -EAGAIN || (results->cut && may_come_again(w))) &&
		   goes_back(w, text, results->cut)) {
		return;
	} else if (status) {
		role_fail(&w->role, false, "%s", text);
	} else {
		/* the job was completed, so a signal that came has no effect on the exit
		 * code */
		w->role.left = true;
		report_end(w, results);
	}
	/* another worker may take over and save into the directory */
	if (results->alone)
		w->made_directory = false;
	w->role.over = true;
}

/* Tells the launcher that this process writes a file of the parameters: the launcher must
 * not kill it until the event "saved" or "unsaved". */
static void saving(void *arg)
{
	struct worker_role *w = arg;

	role_report(&w->role, json_pack("{ss}", "event", "saving"));
}

/* Reports that saving has failed. `text` says why, and whether it is tried again. */
static void unsaved(void *arg, const char *text)
{
	struct worker_role *w = arg;

	role_report(&w->role,
		json_pack("{ss so}", "event", "unsaved", "text", report_text(text)));
}

static void stop(struct role *role, const char *why, bool save)
{
	struct tern_worker *worker = ((struct worker_role *)role)->worker;
	char text[120];

	snprintf(text, sizeof(text), "it was %s", why);
	if (save)
		tern_worker_ask_to_leave(worker, text);
	else
		tern_worker_stop(worker, text);
}

static void describe(struct role *role, char *text, size_t bytes)
{
	tern_worker_describe(((struct worker_role *)role)->worker, text, bytes);
}

static void describe_reading(struct role *role, char *text, size_t bytes)
{
	const struct job_settings *job = &((struct worker_role *)role)->settings->job;

	snprintf(text, bytes, "it reads its data, %.300s", job->data);
}

static bool is_busy(struct role *role)
{
	return tern_worker_is_saving(((struct worker_role *)role)->worker);
}

/* ---- starting ---- */

/* Reads --join. */
static int read_servers(struct worker_role *w)
{
	const struct job_settings *job = &w->settings->job;
	struct message error;
	int r = servers_read(
		w->settings->join, &job->fabric, w->role.domain, &w->named, &error);

	if (r == 0)
		r = servers_check_distinct(&w->named, w->settings->join, &error);
	if (r == 0 && w->named.count != job->servers)
		r = options_refuse(&error,
			"--join %.300s: has %u address%s, --servers says %llu",
			w->settings->join, w->named.count,
			w->named.count == 1 ? "" : "es",
			(unsigned long long)job->servers);
	if (r)
		role_fail(&w->role, true, "%s", error.text);
	else
		tern_view_of_job(&(struct tern_ps_job){.servers = w->named.address,
					 .server_count = w->named.count},
			&w->view);
	return r;
}

/* Creates the --save directory. It is removed again if the job fails before anything is
 * saved. */
static int make_directory(struct worker_role *w, struct tern_ps_text *why)
{
	const char *save = w->settings->job.save;
	int r = 0;

	if (!save)
		return 0;
	if (mkdir(save, 0777) == 0) {
		w->made_directory = true;
	} else if (errno != EEXIST) {
		r = -errno;
		snprintf(why->text, sizeof(why->text), "--save %.300s: %s", save,
			strerror(-r));
	}
	return r;
}

/* Checks that the file of parameters will fit on the disk: a full disk is better found
 * before the training than after it. */
static int probe_directory(const struct worker_role *w, struct tern_ps_text *why)
{
	/* Size of the file: the parameters, plus a header that names each of them. */
	size_t params;
	const struct tern_param *list = tern_model_params(w->model, &params);
	uint64_t bytes = tern_model_size(w->model) * sizeof(float) + 4096;
	int r;

	for (size_t i = 0; i < params; i++)
		bytes += strlen(list[i].name) + 200;
	r = host_file_probe(w->settings->job.save, bytes);
	if (r < 0)
		snprintf(why->text, sizeof(why->text),
			"--save %.250s: a file of %llu bytes, for the parameters: %s",
			w->settings->job.save, (unsigned long long)bytes, strerror(-r));
	return r;
}

/* Worker 0 creates the --save directory before the training, so that a failure costs no
 * work. Another worker creates it only when it is about to save. */
static int prepare_saving(struct worker_role *w)
{
	struct tern_ps_text why;

	if (w->settings->job.save)
		snprintf(w->save_path, sizeof(w->save_path), "%.4000s/" JOB_SAVED,
			w->settings->job.save);
	if (w->settings->job.save)
		snprintf(w->interrupted_path, sizeof(w->interrupted_path),
			"%.4000s/" JOB_INTERRUPTED, w->settings->job.save);
	if (w->settings->index != 0 || !w->settings->job.save ||
		(make_directory(w, &why) == 0 && probe_directory(w, &why) == 0))
		return 0;
	role_fail(&w->role, true, "%s", why.text);
	return -EINVAL;
}

static int finishing(void *arg, struct tern_ps_text *why)
{
	return make_directory(arg, why);
}

/* Called before the parameters of an interrupted job are saved. Refuses if an earlier run
 * of the same job has left a file with at least as many steps, even with --overwrite,
 * since batch systems start the same command line again. */
static int interrupted(void *arg, uint64_t step, struct tern_ps_text *why)
{
	struct worker_role *w = arg;
	uint64_t earlier;

	if (earlier_is_of(w->interrupted_path, w->job_name, &earlier) &&
		earlier >= step) {
		snprintf(why->text, sizeof(why->text),
			"step %llu is not saved: %.300s has step %llu of this job",
			(unsigned long long)step, w->interrupted_path,
			(unsigned long long)earlier);
		return -EEXIST;
	}
	return make_directory(w, why);
}

static int find_device(struct worker_role *w)
{
	struct message error;
	int r = device_find("device", &w->settings->job.device, w->settings->index,
		w->settings->job.arithmetic, &w->device, &error);

	if (r)
		role_fail(&w->role, true, "%s", error.text);
	return r;
}

static int read_data(struct worker_role *w)
{
	struct message error;
	struct tern_data_error why;
	int r;

	w->role.describe = describe_reading;
	r = job_data_read(&w->settings->job, role_is_asked, &w->role, &w->data, &error);
	w->role.describe = NULL;
	if (r == -ECANCELED)
		return r;
	if (r) {
		role_fail(&w->role, true, "%s", error.text);
		return r;
	}
	if (tern_model_new(w->settings->job.model, w->data.train, &w->model, &why)) {
		role_fail(&w->role, true, "--model %.100s: %s", w->settings->job.model,
			why.text);
		return -EINVAL;
	}
	return 0;
}

static void describe_init_from(struct role *role, char *text, size_t bytes)
{
	const struct job_settings *job = &((struct worker_role *)role)->settings->job;

	snprintf(text, bytes, "it reads its first parameters, %.300s", job->init_from);
}

static int read_init_from(struct worker_role *w)
{
	struct message error;
	int r;

	if (!w->settings->job.init_from)
		return 0;
	w->role.describe = describe_init_from;
	r = init_from_read(w->settings->job.init_from, w->model, role_is_asked, &w->role,
		&w->init_from, &error);
	w->role.describe = NULL;
	if (r < 0 && r != -ECANCELED)
		role_fail(&w->role, r != -ENOMEM && r != -EIO, "%s", error.text);
	return r;
}

static int make_engine(struct worker_role *w)
{
	struct message error;
	int r = device_engine(
		&w->device, w->model, (size_t)w->settings->job.batch, &w->engine, &error);

	if (r)
		role_fail(&w->role, r == -EINVAL, "%s", error.text);
	return r;
}

/* In async mode every worker has a slot 0, and the lowest live one evaluates. */
static bool is_evaluator(void *arg)
{
	const struct worker_role *w = arg;

	return w->settings->job.mode.kind == TERN_MODE_SYNC ||
	       tern_worker_is_finisher(w->worker);
}

/* Tells server 0 results on the test data, for those who watch the job. */
static void tested(void *arg, double loss, double accuracy)
{
	struct worker_role *w = arg;

	tern_worker_metric(w->worker, "test_loss", loss, 0);
	tern_worker_metric(w->worker, "test_accuracy", accuracy, 0);
}

static void evaluated(void *arg, uint64_t step, double loss, double accuracy)
{
	struct worker_role *w = arg;
	json_t *event =
		json_pack("{ss sI}", "event", "evaluated", "step", (json_int_t)step);

	report_number(event, "test_loss", loss);
	report_number(event, "test_accuracy", accuracy);
	role_report(&w->role, event);
	tested(w, loss, accuracy);
}

/* Makes what computes gradients, and fills in what the job says about model and data. */
static int make_computer(struct worker_role *w, struct tern_ps_job *job)
{
	const struct job_settings *j = &w->settings->job;
	int r = engine_computer_new(
		&(struct engine_computer_opts){.env = tern_context_env(w->role.ctx),
			.engine = w->engine,
			.train = w->data.train,
			.batch = (uint32_t)j->batch,
			.seed = j->seed,
			.test = w->data.test,
			.eval_every = j->eval_every,
			.is_evaluator = is_evaluator,
			.evaluated = evaluated,
			.tested = tested,
			.write_count = (uint32_t)j->generate,
			.note = note,
			.arg = w},
		&w->computer);
	if (r)
		role_fail(&w->role, false, "no memory for batches of %llu records",
			(unsigned long long)j->batch);
	else
		engine_computer_describe(w->computer, job);
	return r;
}

/* Reads and makes what the worker keeps until the process ends. */
static int prepare(struct worker_role *w)
{
	int r = read_servers(w);

	if (r == 0)
		r = find_device(w);
	if (r == 0)
		r = read_data(w);
	if (r == 0)
		r = read_init_from(w);
	if (r == 0)
		r = make_engine(w);
	if (r == 0)
		r = prepare_saving(w);
	return r;
}

/* The options of the next worker, but for its job and what follows from it. */
static struct tern_worker_opts worker_opts(struct worker_role *w)
{
	return (struct tern_worker_opts){
		.domain = w->role.domain,
		.ctx = w->role.ctx,
		.index = (uint32_t)w->settings->index,
		.goes_back = w->settings->server_wait_s > 0,
		.decision_ns = job_drain_ns(w->settings->drain_within_s, 6),
		.returns = w->role.back_ns > 0,
		.has_begun = w->has_begun,
		.places = w->places,
		.moved = moved,
		.viewed = viewed,
		.finishing = finishing,
		.interrupted = interrupted,
		.begun = begun,
		.progress = progress,
		.note = note,
		.lost = lost,
		.saving = saving,
		.unsaved = unsaved,
		.waiting = waiting,
		.ended = ended,
		.arg = w,
	};
}

static int start(struct worker_role *w)
{
	const struct job_settings *j = &w->settings->job;
	bool again = *w->job_name;
	struct tern_ps_job job = {
		.mode = j->mode.kind,
		.ssp = j->mode.ssp,
		.steps = j->steps,
		.seed = j->seed,
		.slots = (uint32_t)j->slots,
		.workers = (uint32_t)j->workers,
		.batch = (uint32_t)j->batch,
		.optimizer = j->optimizer.rule,
		.clip_norm = j->clip_norm,
		.servers = w->view.servers,
		.server_count = w->view.count,
	};
	struct tern_worker_opts opts = worker_opts(w);
	struct tern_ps_text why;
	int r = make_computer(w, &job);

	if (r)
		return r;
	tern_view_set_job(&w->view, &job);
	opts.job = &job;
	init_from_apply(&w->init_from, &job, &opts);
	opts.computer = &w->computer->computer;
	opts.memory = device_memory(&w->device, w->settings->job.tensor_memory);
	opts.save_path = *w->save_path ? w->save_path : NULL;
	opts.interrupted_path = *w->interrupted_path ? w->interrupted_path : NULL;
	earlier_name(&w->settings->job, w->job_name);
	opts.job_name = w->job_name;
	w->my_steps = tern_ps_job_steps_of(&job, opts.index);
	r = tern_worker_new(&opts, &w->worker, &why);
	if (r)
		role_fail(&w->role, r == -EINVAL || r == -E2BIG, "%s", why.text);
	w->role.stop = r ? NULL : stop;
	w->role.is_busy = r ? NULL : is_busy;
	w->role.describe = r ? NULL : describe;
	if (r == 0)
		role_back_wait(&w->role);
	if (r == 0 && !again) {
		report_device(w);
		role_report(&w->role, json_pack("{ss}", "event", "ready"));
	}
	return r;
}

static int check(struct worker_settings *s, struct message *error)
{
	if (job_check(&s->job, error) ||
		device_check_memory(s->job.tensor_memory, s->job.device.cuda, error))
		return -EINVAL;
	if (!s->join)
		snprintf(error->text, sizeof(error->text),
			"--join is missing: the addresses of the servers");
	else if (s->index >= s->job.workers && /* else it may be added to a running job */
		 (s->server_wait_s == 0 || s->job.mode.kind != TERN_MODE_SYNC))
		snprintf(error->text, sizeof(error->text),
			"--index %llu: there are %llu workers (--workers), counted from "
			"0; only a job in sync mode gets more, from workers with a "
			"--server-wait above 0",
			(unsigned long long)s->index, (unsigned long long)s->job.workers);
	else
		return 0;
	return -EINVAL;
}

static void end_work(struct worker_role *w)
{
	role_cut(&w->role);
	tern_worker_free(TERN_TAKE(w->worker));
	engine_computer_free(TERN_TAKE(w->computer));
}

/* Runs the worker until it has ended, each time that its job goes back. */
static void work(struct worker_role *w)
{
	int r = start(w);

	while (r == 0) {
		role_loop(&w->role);
		if (!w->role.again)
			return;
		end_work(w);
		r = role_open_again(&w->role, w->settings->server_wait_s);
		if (!role_back_pause(&w->role))
			return;
		if (r == 0)
			r = start(w);
	}
}

static int worker_run(int argc, char **argv)
{
	struct worker_settings settings = {0};
	struct worker_role w = {.settings = &settings};
	struct secret secret;
	struct message error;
	int r;

	if (options_parse(options, argc, argv, &settings, &error) ||
		log_open("worker", settings.job.log_level, &error) ||
		check(&settings, &error) ||
		secret_read(&settings.secret, &secret, &error))
		return command_refuse(&worker_command, "%s", error.text);
	r = role_open(&w.role, &worker_command, settings.index, &settings.job.fabric,
		secret_text(&secret), settings.spin_us, settings.wait_s, 1,
		settings.job.json);
	secret_forget(&secret);
	w.role.drain_ns = job_drain_ns(settings.drain_within_s, 7);
	if (r == 0 && prepare(&w) == 0)
		work(&w);
	if (w.made_directory)
		rmdir(settings.job.save); /* has no effect unless it is empty */
	end_work(&w);
	tern_engine_free(w.engine);
	init_from_free(&w.init_from);
	tern_model_free(w.model);
	job_data_free(&w.data);
	return role_close(&w.role);
}

const struct command worker_command = {
	.name = "worker",
	.usage = "--join HOST:PORT,... --model SPEC --data PATH [options]",
	.summary = "run one worker of a job",
	.options = options,
	.run = worker_run,
};
