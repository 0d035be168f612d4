"""The names of ElasticDL's command-line flags, of its newest version and of older ones; names only.

They are those of ``elasticdl train|evaluate|predict|zoo|clean`` and of its master, parameter server and worker, in the
repository sql-machine-learning/elasticdl: ``elasticdl_client/common/args.py``, ``elasticdl/python/common/args.py`` and
``elasticdl/go/cmd/elasticdl_ps/main.go`` through their history.
"""

from __future__ import annotations

_NEWEST = """
aux_params base_image callbacks checkpoint_dir checkpoint_dir_for_init checkpoint_steps chief_pod_priority
chief_resource_limit chief_resource_request cluster_spec cluster_spec_json critical_worker_index custom_data_reader
data_reader_params distribution_strategy enable_automate_memory envs eval_metrics_fn evaluation_steps
evaluator_pod_priority evaluator_resource_limit evaluator_resource_request extra_pypi_index feed
force_use_kube_config_file get_model_steps grads_to_wait image image_name image_pull_policy job_command job_name
keep_checkpoint_max launch_worker_after_ps_running local_pkg_dir log_file_path log_level log_loss_steps loss
lr_staleness_modulation master_pod_priority master_resource_limit master_resource_request max_step minibatch_size
model_def model_zoo namespace need_elasticdl_job_service need_pod_manager need_task_manager need_tf_config num_epochs
num_evaluators num_minibatches_per_task num_ps_pods num_workers optimizer output populate_env_names prediction_data
prediction_outputs_processor ps_image ps_is_critical ps_pod_priority ps_relaunch_max_num ps_resource_limit
ps_resource_request relaunch_on_worker_failure relaunch_timeout_worker restart_policy sync_version_tolerance
task_fault_tolerance training_data use_async validation_data volume worker_image worker_pod_priority
worker_resource_limit worker_resource_request yaml
"""
"""Of users, in the newest version."""

_ROLES = """
collective_communicator_service_name custom_training_loop job_type master_addr opt_args opt_type port ps_addrs ps_id
worker_id
"""
"""What roles were started with besides."""

_OLDER = """
all checkpoint_filename_for_init codec_file codec_type dataset_fn docker_base_url docker_image_prefix
docker_image_repository docker_tlscert docker_tlskey embedding_service_endpoint evaluation_data_dir
evaluation_start_delay_secs evaluation_throttle_secs image_base input_fn learning_rate_scheduler model_class model_file
model_params prediction_data_dir records_per_task tensorboard_log_dir training_data_dir use_go_ps
"""
"""Gone from the newest version, and still in the scripts of users."""

FLAGS = [f"--{name}" for name in f"{_NEWEST} {_ROLES} {_OLDER}".split()]
